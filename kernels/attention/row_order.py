"""The order in which the attention kernels take a plan's rows: torch on the CPU, one kernel on a GPU.

Rows of one KV head stay together and the longest comes first: mixing all heads cost 16 to 22 % at 128K tokens on an
H200, because the keys left the L2 cache.
"""

from __future__ import annotations

import torch

from routesparse.kernels.common import on_gpu, variant
from routesparse.kernels.plan import RowPlan

# The kernel sorts by 256 steps of a row's number of tiles, as in a counting sort.
_STEPS = 256
_ROWS_AT_ONCE = 1_024


def row_order(plan: RowPlan, group: int = 1) -> torch.Tensor:
    """The plan's rows in the order of their launch: indices into [B, H, M], int32 [B * H * M]; no host sync.

    ``group`` query heads share a KV head; their rows stay together, the one with the most tiles first. On a GPU
    rows of one step (``order_kernel``) come in any order.
    """
    if on_gpu(plan.block_count):
        return row_order_triton(plan, group)
    _, last = plan.query_positions()
    column_tiles = (plan.column_count + (plan.block_k - 1)) // plan.block_k
    tiles = torch.where(plan.dense_rows, last // plan.block_k + 1, plan.block_count + column_tiles)
    tiles = tiles.view(-1, group * plan.query_blocks)
    start = torch.arange(len(tiles), device=tiles.device)[:, None] * tiles.shape[1]
    return (tiles.argsort(-1, descending=True) + start).flatten().int()


def row_order_triton(plan: RowPlan, group: int) -> torch.Tensor:
    """``row_order`` by one kernel: a sort and ten small operations would cost 2 % of a sparse layer at 64K tokens."""
    from routesparse.kernels.attention.row_order_kernel import order_kernel

    kv_heads, rows = plan.block_count.numel() // (group * plan.query_blocks), group * plan.query_blocks
    order = torch.empty(kv_heads * rows, dtype=torch.int32, device=plan.device)
    # Where the next row of each step goes.
    cursors = torch.empty(kv_heads, _STEPS, dtype=torch.int32, device=plan.device)
    variant(order_kernel, rows=rows, query_blocks=plan.query_blocks, n_k=plan.n_k)[(kv_heads,)](
        plan.dense_rows.contiguous().view(torch.uint8),
        plan.block_count.contiguous(),
        plan.column_count.contiguous(),
        cursors,
        order,
        rows,
        plan.query_blocks,
        plan.key_offset,
        plan.n_k,
        plan.key_blocks + plan.columns.shape[3] // plan.block_k + 1,
        BLOCK_Q=plan.block_q,
        BLOCK_K=plan.block_k,
        STEPS=_STEPS,
        AT_ONCE=_ROWS_AT_ONCE,
        num_warps=8,
    )
    return order
