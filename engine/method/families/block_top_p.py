"""Block top-p: as many KV blocks as reach a share of the row's cumulative score.

One more than the paper's families: one number of blocks for all rows (``block_sparse``) is dear on diffuse inputs.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

from routesparse.engine.method.families._block_ranking import ranked, ranked_row
from routesparse.engine.method.family import Context, Family, FamilyIndex, Look

if TYPE_CHECKING:
    from routesparse.engine.method.patterns import Candidate
    from routesparse.engine.method.segments import Segment

NAME = "block_top_p"
SHARES = (0.8, 0.9, 0.95, 0.98)


def budgets(segment: Segment) -> list[dict[str, float]]:
    """``share``: of the softmax weights of a row's pooled scores, forced blocks aside."""
    return [{"share": share} for share in SHARES]


def text(budget: Candidate) -> str:
    return f"blocks to {budget.share:g} of the score"


def reads(context: Context, budget: Candidate, unit: tuple[int, int], i: int) -> list[int]:
    """Bins of score, the best first, while the weight of the better ones is below the share."""
    row = ranked_row(context, unit, i)
    better = (row.weight.cumsum() - row.weight) / max(row.weight.sum(), 1e-30)
    return row.best(int((better < budget.share).sum()))


def build(context: Context, budgets: Sequence[Candidate]) -> FamilyIndex:
    """Level l keeps the best blocks until their weights reach ``budgets[l].share``, forced ones besides."""
    found = context.once(ranked)
    return FamilyIndex(NAME, found.top_p, row_counts=found.top_p_counts)


FAMILY = Family(
    name=NAME,
    look=Look("block top-p", "P", light="#12876a", dark="#3fb593", symbol="diamond", mark="◆"),
    budgets=budgets,
    text=text,
    build=build,
    reads=reads,
    stamp=(SHARES,),
)
