"""Step 6 on Triton: the row plan of the chosen budgets, static shapes, no host sync.

The slow twin is the engine's ``row_plan.lower``, which is what a CPU runs. Triton is imported inside the functions.
"""

from __future__ import annotations

import torch

from routesparse.kernels.index_triton import Place
from routesparse.kernels.interface import RowPlan

# A row that keeps more than this share of the longest row's blocks is dense on a GPU: it saves too little to be listed.
# Dense heads are rows of the same launch.
LISTED_SHARE = 0.625
BLOCKS_OF_LANE = 8  # of a row that a warp lists at a time; as measured on an H200


def lower_levels(
    choice: torch.Tensor,
    table: torch.Tensor,
    maps: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    columns: torch.Tensor,
    place: Place,
    *,
    key_start: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> RowPlan:
    """The row plan of chosen candidates; rows past the body are dense.

    choice int64 [B, H]; table int32 [C, 2]: family and level of each candidate, family -1 dense.

    maps: level maps of families 0 .. 3; the first may be [B or 1, 1, M, N]. columns int32 [B, H, V] of family 1,
    ascending, 8 times the key plus the smallest level that holds it.
    """
    from routesparse.kernels.lower_kernel import lower_kernel

    batch, heads = choice.shape
    rows = (batch, heads, place.query_blocks)
    device = choice.device
    capacity = max(place.block_q // place.block_k + 2, int(LISTED_SHARE * place.key_blocks))
    width = columns.shape[-1]
    blocks = torch.empty(*rows, capacity, dtype=torch.int32, device=device)
    singles = torch.empty(*rows, width, dtype=torch.int32, device=device)
    block_count = torch.empty(rows, dtype=torch.int32, device=device)
    single_count = torch.empty_like(block_count)
    dense = torch.empty(rows, dtype=torch.uint8, device=device)
    closed, slash, top_k, top_p = (levels.contiguous() for levels in maps)
    lower_kernel[(dense.numel(),)](
        choice.contiguous(),
        table,
        closed,
        slash,
        top_k,
        top_p,
        columns,
        place.first_keys,
        blocks,
        block_count,
        singles,
        single_count,
        dense,
        closed.stride(0) if closed.shape[0] > 1 else 0,
        heads,
        place.query_blocks,
        place.body_blocks,
        place.key_blocks,
        capacity,
        width,
        place.position,
        place.keys,
        BLOCK_Q=place.block_q,
        BLOCK_K=place.block_k,
        OF_LANE=BLOCKS_OF_LANE,
        num_warps=1,
    )
    return RowPlan(
        place.rows,
        place.keys,
        place.block_q,
        place.block_k,
        blocks,
        block_count,
        singles,
        single_count,
        dense.view(torch.bool),
        key_start,
        None,
        softcap,
        sinks,
    )


def head_density(plan: RowPlan, first_keys: torch.Tensor) -> torch.Tensor:
    """Kept share of the causal area of a lowered plan's heads, from its counts alone: float64 [B, H]."""
    from routesparse.kernels.lower_kernel import density_kernel

    batch, heads, query_blocks = plan.block_count.shape
    out = torch.empty(batch, heads, dtype=torch.float64, device=plan.device)
    density_kernel[(out.numel(),)](
        plan.block_count,
        plan.column_count,
        plan.dense_rows.view(torch.uint8),
        first_keys,
        out,
        heads,
        query_blocks,
        plan.n_k - plan.n_q,
        plan.n_k,
        BLOCK_Q=plan.block_q,
        BLOCK_K=plan.block_k,
        N=1_024,
        num_warps=4,
    )
    return out
