"""Step 6, first half: the row plan of the chosen budgets, and the share of the causal area that it keeps.

A row that keeps more than LISTED_SHARE of the longest row's blocks is dense: it saves too little to be listed.
"""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, launch
from routesparse.kernels.geometry import FamilyMaps, SegmentGeometry
from routesparse.kernels.lower_plan import naive
from routesparse.kernels.plan import RowPlan

__all__ = ["head_density", "lower_levels"]

BLOCKS_OF_LANE = 8  # of a row that a warp lists at a time; as measured on an H200


@dispatched(naive.lower_levels)
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
    """See the naive twin; static shapes, nothing waits for the host."""
    from routesparse.kernels.lower_plan.kernel import lower_kernel

    batch, heads = choice.shape
    rows = (batch, heads, geometry.query_blocks)
    device = choice.device
    capacity = naive.capacity(geometry)
    columns = families.columns
    by_key = choice.new_zeros(batch, heads, 0, dtype=torch.int32) if columns is None else columns.by_key
    width = by_key.shape[-1]
    blocks = torch.empty(*rows, capacity, dtype=torch.int32, device=device)
    singles = torch.empty(*rows, width, dtype=torch.int32, device=device)
    block_count = torch.empty(rows, dtype=torch.int32, device=device)
    single_count = torch.empty_like(block_count)
    dense = torch.empty(rows, dtype=torch.uint8, device=device)
    launch(
        lower_kernel,
        (dense.numel(),),
        geometry.arguments(),
        families.arguments(batch, heads),
        lengths=("capacity", "width"),
        choice=choice.contiguous(),
        table=table,
        columns=by_key,
        blocks=blocks,
        block_count=block_count,
        singles=singles,
        single_count=single_count,
        dense=dense,
        heads=heads,
        capacity=capacity,
        width=width,
        OF_LANE=BLOCKS_OF_LANE,
        num_warps=1,
    )
    place = geometry.rows, geometry.keys, geometry.block_q, geometry.block_k
    lists = blocks, block_count, singles, single_count, dense.view(torch.bool)
    return RowPlan(*place, *lists, key_start, None, softcap, sinks)


@dispatched(naive.head_density)
def head_density(first_keys: torch.Tensor, plan: RowPlan) -> torch.Tensor:
    """Kept share of the causal area of a lowered plan's heads, from its counts alone: float64 [B, H]."""
    from routesparse.kernels.lower_plan.kernel import density_kernel

    batch, heads, query_blocks = plan.block_count.shape
    out = torch.empty(batch, heads, dtype=torch.float64, device=plan.device)
    launch(
        density_kernel,
        (out.numel(),),
        block_count=plan.block_count,
        single_count=plan.column_count,
        dense=plan.dense_rows.view(torch.uint8),
        first_key=first_keys,
        out=out,
        heads=heads,
        query_blocks=query_blocks,
        position=plan.key_offset,
        segment_keys=plan.n_k,
        BLOCK_Q=plan.block_q,
        BLOCK_K=plan.block_k,
        N=1_024,
        num_warps=4,
    )
    return out
