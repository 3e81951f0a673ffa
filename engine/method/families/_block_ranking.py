"""The ranking of KV blocks by their score that block_sparse and floor share; no family of its own.

A block's score is its share of the query block's rows (``kernels/block_score``), or what the recent rows read of it,
divided by QUESTION_FACTOR, where that is more: the last rows usually ask the question, and what they read stays in
the plan of every row. Scores are logarithms. A head whose floor is multiplied (``Context.head_floors``) has its scores
divided instead, which top-k does not see. For top-k a row's scores are cut into bins of equal width, and budgets end
at edges of bins (``kernels/level_maps``), so that neither a sort nor a top-k is needed.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, NamedTuple

import numpy as np

from routesparse.kernels.rules import (
    LONG_KEYS,
    LONG_SCORE_CLUSTERS,
    LONG_SCORE_ROWS,
    QUESTION_FACTOR,
    SCORE_BINS,
    SCORE_CLUSTERS,
    SCORE_ROWS,
)

if TYPE_CHECKING:
    import torch

    from routesparse.engine.method.records import Context


class RankedLevels(NamedTuple):
    """Level maps uint8 [B, H, M, N], and int32 [B, H, M, levels]: blocks that a query block reads at each level."""

    top_k: torch.Tensor
    floor: torch.Tensor
    top_k_counts: torch.Tensor
    floor_counts: torch.Tensor


def block_scores(context: Context) -> torch.Tensor:
    """Logarithm of each KV block's share of each query block's rows: float16 [B, H, M, N]."""
    from routesparse.kernels.block_score import block_score

    segment = context.segment
    rows, clusters = SCORE_ROWS, SCORE_CLUSTERS
    if segment.keys > LONG_KEYS:
        rows, clusters = LONG_SCORE_ROWS, LONG_SCORE_CLUSTERS
    found = block_score(context.inputs.logits, segment.first, context.geometry, rows=rows, clusters=clusters)
    floors = context.head_floors
    return found if floors is None else found - floors[..., None, None].half()


def question_scores(context: Context) -> torch.Tensor:
    """Logarithm of the most that a recent row reads of each KV block, over QUESTION_FACTOR: float32 [B, H, N]."""
    found = (context.probe.recent_block_mass.amax(2) / QUESTION_FACTOR).log()
    return found if context.head_floors is None else found - context.head_floors.unsqueeze(-1)


def log_floors(shares: Sequence[float]) -> np.ndarray:
    """float32 logarithms of shares, as scores are compared with."""
    return np.log(np.array(shares, dtype=np.float64)).astype(np.float32)


def ranked(context: Context) -> RankedLevels:
    """Levels of block_sparse and floor from one pass; a family without budgets gets one level that nobody reads."""
    from routesparse.engine.device.constants import constant
    from routesparse.kernels.level_maps import score_levels

    device = context.inputs.q.device
    blocks = [c.blocks for c in context.budgets("block_sparse")] or [1]
    shares = [c.share for c in context.budgets("floor")] or [1.0]
    found = score_levels(
        block_scores(context),
        question_scores(context),
        context.geometry,
        constant(np.array(blocks, dtype=np.int32), device),
        constant(log_floors(shares), device),
    )
    return RankedLevels(*found)


@dataclass(frozen=True)
class RankedRow:
    """One query block's ranking, for definitions. free: the KV blocks that budgets rank."""

    forced: int  # blocks that the row reads anyway
    free: np.ndarray  # int64
    score: np.ndarray  # float32, of each free block
    bins: np.ndarray  # int64, of each free block, best first

    def best(self, taken: int) -> list[int]:
        """The blocks in the best ``taken`` bins."""
        kept: list[int] = self.free[self.bins < taken].tolist()
        return kept


def ranked_row(context: Context, unit: tuple[int, int], i: int) -> RankedRow:
    """Query block i of unit (batch, head), ranked by plain loops."""
    batch, head = unit
    forced, causal = (mask[min(batch, len(mask) - 1), 0, i].numpy() for mask in context.forced_and_causal)
    free = np.flatnonzero(causal & ~forced)
    score = context.once(block_scores)[batch, head, i].float().numpy()
    score = np.maximum(score, context.once(question_scores)[batch, head].numpy())[free]
    best = score.max(initial=-np.inf)
    width = np.float32(max(best - score.min(initial=np.inf), 1e-20)) / SCORE_BINS
    bins = np.minimum((best - score) * (np.float32(1.0) / width), SCORE_BINS - 1).astype(np.int64)
    return RankedRow(int(forced.sum()), free, score, bins)
