"""The ranking of KV blocks by pooled score that block_sparse and block_top_p share; no family of its own.

A row's scores are cut into bins of equal width, and budgets end at edges of bins (``kernels/level_maps``), so that
neither a sort nor a top-k is needed.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from routesparse.kernels.rules import SCORE_BINS

if TYPE_CHECKING:
    import torch

    from routesparse.engine.method.family import Context
    from routesparse.engine.method.inputs import AttentionInputs
    from routesparse.engine.method.segments import Segment


class RankedLevels(NamedTuple):
    """Level maps uint8 [B, H, M, N], and int32 [B, H, M, levels]: blocks that a query block reads at each level."""

    top_k: torch.Tensor
    top_p: torch.Tensor
    top_k_counts: torch.Tensor
    top_p_counts: torch.Tensor


def block_scores(inputs: AttentionInputs, segment: Segment) -> torch.Tensor:
    """Mean query of each query block x mean key of each KV block, scaled, before a soft cap: float16 [B, H, M, N]."""
    from routesparse.engine.method.pooled_keys import pool_keys
    from routesparse.kernels.block_means import block_means, pooled_scores

    queries = block_means(inputs.q, segment.first, segment.rows, segment.block_q, table=inputs.table)
    return pooled_scores(queries, pool_keys(inputs, segment), inputs.scale)


def ranked(context: Context) -> RankedLevels:
    """Levels of block_sparse and block_top_p from one pass; one without budgets has a level that nobody reads."""
    from routesparse.engine.device.constants import constant
    from routesparse.kernels.level_maps import score_levels

    device = context.inputs.q.device
    blocks = [c.blocks for c in context.budgets("block_sparse")] or [1]
    shares = [c.share for c in context.budgets("block_top_p")] or [1.0]
    found = score_levels(
        block_scores(context.inputs, context.segment),
        context.geometry,
        constant(np.array(blocks, dtype=np.int32), device),
        constant(np.array(shares, dtype=np.float32), device),
        context.inputs.softcap,
    )
    return RankedLevels(*found)


@dataclass(frozen=True)
class RankedRow:
    """One query block's ranking, for definitions. free: the KV blocks that budgets rank; bins: of each, best first."""

    forced: int  # blocks that the row reads anyway
    free: np.ndarray  # int64
    bins: np.ndarray  # int64
    count: np.ndarray  # int64 [SCORE_BINS], blocks in each bin
    weight: np.ndarray  # float64 [SCORE_BINS], count times exp of the bin's middle below the row's best score

    def best(self, taken: int) -> list[int]:
        """The blocks in the best ``taken`` bins."""
        kept: list[int] = self.free[self.bins < taken].tolist()
        return kept


def ranked_row(context: Context, unit: tuple[int, int], i: int) -> RankedRow:
    """Query block i of unit (batch, head), ranked by plain loops."""
    batch, head = unit
    forced, causal = (mask[min(batch, len(mask) - 1), 0, i].numpy() for mask in context.forced_and_causal)
    free = np.flatnonzero(causal & ~forced)
    score = context.once(_capped_scores)[batch, head, i].numpy()[free]
    best = score.max(initial=-np.inf)
    width = np.float32(max(best - score.min(initial=np.inf), 1e-20)) / SCORE_BINS
    bins = np.minimum((best - score) * (np.float32(1.0) / width), SCORE_BINS - 1).astype(np.int64)
    count = np.bincount(bins, minlength=SCORE_BINS)
    weight = count * np.exp(-(np.arange(SCORE_BINS) + 0.5) * float(width))
    return RankedRow(int(forced.sum()), free, bins, count, weight)


def _capped_scores(context: Context) -> torch.Tensor:
    scores, softcap = block_scores(context.inputs, context.segment).float(), context.inputs.softcap
    return softcap * (scores / softcap).tanh() if softcap else scores
