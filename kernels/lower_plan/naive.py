"""Row plans by tensor operations."""

from __future__ import annotations

import torch

from routesparse.kernels.geometry import FamilyMaps, SegmentGeometry
from routesparse.kernels.plan import RowPlan
from routesparse.kernels.rules import LISTED_SHARE, NEVER


def capacity(geometry: SegmentGeometry) -> int:
    """KV blocks that a listed row may hold."""
    return max(geometry.block_q // geometry.block_k + 2, int(LISTED_SHARE * geometry.key_blocks))


def lower_levels(
    choice: torch.Tensor,
    table: torch.Tensor,
    families: FamilyMaps,
    geometry: SegmentGeometry,
    *,
    key_start: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> RowPlan:
    """The row plan of chosen candidates; rows past the body, and rows above LISTED_SHARE, are dense.

    choice int64 [B, H]; table int32 [C, 2]: family (its number in ``families``) and level of each candidate, family -1
    dense.
    """
    batch, heads = choice.shape
    family, level = table.long()[choice].unbind(-1)
    shape = (batch, heads, geometry.query_blocks, geometry.key_blocks)
    mask = torch.zeros(shape, dtype=torch.bool, device=choice.device)
    for index, levels in enumerate(families.maps):
        chosen = (family == index).view(batch, heads, 1, 1)
        mask |= chosen & (levels <= level.view(batch, heads, 1, 1)) & (levels != NEVER)
    columns, column_count = families.columns, None
    if columns is not None:
        # Other families may have more levels than this one; their units take no columns.
        counts = columns.counts.long()
        column_count = torch.where(family == families.columns_of, counts[level.clamp_max(len(counts) - 1)], 0)
    body = torch.arange(geometry.query_blocks, device=choice.device) < geometry.body_blocks
    crowded = mask.sum(-1) > capacity(geometry)
    return RowPlan.from_block_mask(
        mask,
        n_q=geometry.rows,
        n_k=geometry.keys,
        block_q=geometry.block_q,
        block_k=geometry.block_k,
        columns=None if columns is None else columns.ranked,
        column_count=column_count,
        dense_rows=(family < 0).unsqueeze(-1) | ~body | crowded,
        key_start=key_start,
        softcap=softcap,
        sinks=sinks,
    )


def head_density(first_keys: torch.Tensor, plan: RowPlan) -> torch.Tensor:
    """Kept share of the causal area of a lowered plan's heads, from its counts alone: float64 [B, H].

    first_keys int64 [B], of each prompt. A lowered row lists its diagonal, and its columns lie outside of its blocks:
    what is not diagonal lies wholly before the row's first query. Only the block that holds the first real key is read
    in part.
    """
    start = first_keys.view(-1, 1, 1)
    first, last = plan.query_positions()
    rows = last - first + 1

    def pairs_from(key: torch.Tensor) -> torch.Tensor:
        until, before = (last - key + 1).clamp_min(0), (first - key).clamp_min(0)
        return (until * (until + 1) - before * (before + 1)) // 2

    edge = first // plan.block_k
    diagonal = (last // plan.block_k - torch.maximum(edge, start // plan.block_k) + 1).clamp_min(0)
    inside = pairs_from(torch.maximum(edge * plan.block_k, start))
    # The lowered rows always list the sink block, whose keys before the first real one are hidden.
    hidden = torch.where(start // plan.block_k < edge, start % plan.block_k, 0)
    before = (plan.block_count - diagonal) * plan.block_k - hidden + plan.column_count
    everything = pairs_from(start)
    kept = torch.where(plan.dense_rows, everything, before * rows + inside).sum(-1).double()
    return kept / everything.sum(-1).clamp_min(1)
