"""Level maps by tensor operations: the specification, bins of scores included."""

from __future__ import annotations

import torch

from routesparse.kernels.causal_blocks import diagonal_blocks, forced_and_causal
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.rules import NEVER, SCORE_BINS

MAX_LEVELS = 16  # of the families that rank by score


def band_levels(bands: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
    """The smallest level that keeps each band: uint8 [B, H, N] of band masses float32 [B, H, N].

    Level l keeps the budgets[l] bands of the largest mass, of equal ones the nearer; budgets int32 [levels], ascending.
    """
    rank = bands.argsort(dim=-1, descending=True, stable=True).argsort(-1)
    level = (rank.unsqueeze(-1) >= budgets).sum(-1)
    return torch.where(level < len(budgets), level, NEVER).to(torch.uint8)


def slash_levels(
    band_levels: torch.Tensor, geometry: SegmentGeometry, *, from_last: bool = False
) -> torch.Tensor:
    """Level map uint8 [B, H, M, N] of bands: band_levels uint8 [B, H, N] by block distance.

    from_last: the distance is from the KV block of a query block's last row, not of its first.
    """
    forced, causal = forced_and_causal(geometry)
    end = diagonal_blocks(geometry)[from_last]
    distance = (end - torch.arange(geometry.key_blocks, device=end.device)).clamp_min(0)
    return band_levels[:, :, distance].masked_fill_(forced, 0).masked_fill_(~causal, NEVER)


def score_levels(
    scores: torch.Tensor,
    question: torch.Tensor,
    geometry: SegmentGeometry,
    budgets: torch.Tensor,
    floors: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Top-k and floor level maps uint8 [B, H, M, N] of block scores [B, H, M, N], natural logarithms.

    And how many blocks each query block reads at each level, int32 [B, H, M, levels] of either family.
    question float32 [B, H, N], a logarithm, too: no score of a head counts as less. budgets int32 [levels], blocks a
    row, forced ones included; floors float32 [levels], logarithms, descending. A level of the floors reads the blocks
    whose score is at least its floor. For top-k a row's scores between the sink and the local blocks are cut into
    SCORE_BINS equal bins, the best first; a bin belongs to a level where it fits as a whole, so that top-k never
    exceeds its budget.

    Errors: ValueError for more than MAX_LEVELS levels.
    """
    if max(len(budgets), len(floors)) > MAX_LEVELS:
        raise ValueError(f"{len(budgets)} budgets and {len(floors)} floors; {MAX_LEVELS} of each at most")
    forced, causal = (mask.expand(scores.shape) for mask in forced_and_causal(geometry))
    ranked = causal & ~forced
    score = torch.maximum(scores.float(), question.unsqueeze(2))
    always = forced.sum(-1, keepdim=True, dtype=torch.int32)

    def mapped(levels: torch.Tensor) -> torch.Tensor:
        return levels.to(torch.uint8).masked_fill_(forced, 0).masked_fill_(~causal, NEVER)

    below = torch.zeros_like(scores, dtype=torch.uint8)
    for floor in floors.unbind():
        below += score < floor
    floor_levels = mapped(below.masked_fill(below == len(floors), NEVER))
    # Levels nest, so what a level reads is what all levels up to it begin with.
    begins = torch.zeros(*scores.shape[:-1], len(floors) + 1, dtype=torch.int32, device=scores.device)
    begins.scatter_add_(
        -1, torch.where(ranked, below, len(floors)).long(), torch.ones_like(below, dtype=torch.int32)
    )
    floor_count = begins[..., :-1].cumsum(-1, dtype=torch.int32) + always

    high = score.masked_fill(~ranked, -torch.inf).amax(-1, keepdim=True)
    low = score.masked_fill(~ranked, torch.inf).amin(-1, keepdim=True)
    width = torch.where(ranked.any(-1, keepdim=True), high - low, 0.0).clamp_min(1e-20) / SCORE_BINS
    bins = ((high - score) * (1.0 / width)).nan_to_num(0.0).clamp(0, SCORE_BINS - 1).int()
    # Blocks that the budgets do not rank are counted in a bin past the last.
    counted = torch.where(ranked, bins, SCORE_BINS).long()
    count = torch.zeros(*scores.shape[:-1], SCORE_BINS + 1, dtype=torch.int32, device=scores.device)
    count = count.scatter_add_(-1, counted, torch.ones_like(counted, dtype=torch.int32))[..., :-1]
    up_to = count.cumsum(-1, dtype=torch.int32)
    # The number of bins that each level takes: [B, H, M, levels].
    taken = torch.searchsorted(up_to, (budgets - always).contiguous(), right=True)
    top_k_count = up_to.gather(-1, (taken - 1).clamp_min(0)).masked_fill(taken == 0, 0) + always
    each = torch.arange(SCORE_BINS, device=taken.device).expand(*taken.shape[:-1], -1).contiguous()
    of_bin = torch.searchsorted(taken.contiguous(), each, right=True)
    of_bin = torch.where(of_bin == len(budgets), NEVER, of_bin)
    return mapped(of_bin.gather(-1, bins.long())), floor_levels, top_k_count.int(), floor_count


def readers(levels: torch.Tensor, depth: int, geometry: SegmentGeometry) -> torch.Tensor:
    """How many query blocks of the body read each KV block at each level: int32 [B, H, depth, N] of a level map."""
    body = levels[:, :, : geometry.body_blocks]
    return torch.stack([(body <= level).sum(2, dtype=torch.int32) for level in range(depth)], 2)
