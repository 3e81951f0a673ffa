"""Means of blocks of keys: what the pooled probe reads (eq. 3)."""

from __future__ import annotations

import torch

from routesparse.kernels.block_means import naive
from routesparse.kernels.common import dispatched, power_of_two, variant


@dispatched(naive.block_means)
def block_means(
    x: torch.Tensor,
    first: int,
    rows: int,
    block: int,
    low: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    place: int = 0,
) -> torch.Tensor:
    """See the naive twin."""
    from routesparse.kernels.block_means.kernel import block_means_kernel

    batch, heads, _, head_size = x.shape
    blocks = -(-rows // block)
    out = torch.empty(batch, heads, blocks, head_size, dtype=torch.float32, device=x.device)
    variant(block_means_kernel, rows=rows, blocks=blocks)[(blocks, batch * heads)](
        x,
        out if table is None else table,
        out,
        out if low is None else low,
        *x.stride(),
        heads,
        first,
        rows,
        blocks,
        BLOCK=block,
        HEAD=head_size,
        HEAD_PADDED=power_of_two(head_size),
        LOW=low is not None,
        PLACE=-1 if table is None else place,
        # Warps that share a block's rows have to wait for each other: one, where it can hold them.
        num_warps=max(1, min(4, block * power_of_two(head_size) * x.element_size() // 32_768)),
    )
    return out
