"""Block-sparse: per query block, the KV blocks with the highest score (paper section 3.1, MInference)."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from routesparse.engine.method.families._block_ranking import ranked, ranked_row
from routesparse.engine.method.records import Candidate, Context, Family, FamilyIndex, Look
from routesparse.engine.method.segments import Segment
from routesparse.kernels.rules import SCORE_BINS

NAME = "block_sparse"
DENSITIES = (0.02, 0.05, 0.1, 0.2, 0.33, 0.5)


def budgets(segment: Segment) -> list[dict[str, int]]:
    """``blocks``: KV blocks a row, forced ones among them."""
    return [{"blocks": segment.blocks_for_density(density)} for density in DENSITIES]


def text(budget: Candidate) -> str:
    """The budget in words."""
    return f"{budget.blocks} blocks of {budget.block_k} a row"


def reads(context: Context, budget: Candidate, unit: tuple[int, int], i: int) -> list[int]:
    """The best bins of score that fit as a whole beside the forced blocks, so that a row never exceeds its budget."""
    row = ranked_row(context, unit, i)
    count = np.bincount(row.bins, minlength=SCORE_BINS)
    fitting = int((count.cumsum() <= budget.blocks - row.forced).sum())
    return row.best(fitting)


def build(context: Context, budgets: Sequence[Candidate]) -> FamilyIndex:
    """Level l keeps at most ``budgets[l].blocks`` blocks of each query block."""
    found = context.once(ranked)
    return FamilyIndex(NAME, found.top_k, row_counts=found.top_k_counts)


FAMILY = Family(
    name=NAME,
    look=Look("block-sparse", "B", light="#e39a2d", dark="#e8b25a", symbol="circle", mark="●"),
    budgets=budgets,
    text=text,
    build=build,
    reads=reads,
    stamp=(DENSITIES,),
    needs_probe=True,
)
