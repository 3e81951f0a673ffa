"""Means of blocks of keys: what the pooled probe reads (eq. 3)."""

from __future__ import annotations

import torch

from routesparse.kernels.block_means import naive
from routesparse.kernels.common import dispatched, launch, power_of_two, strides


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
    launch(
        block_means_kernel,
        (blocks, batch * heads),
        strides("", x),
        lengths=("blocks",),
        x=x,
        table=out if table is None else table,
        out=out,
        low=out if low is None else low,
        heads=heads,
        first=first,
        rows=rows,
        blocks=blocks,
        BLOCK=block,
        HEAD=head_size,
        HEAD_PADDED=power_of_two(head_size),
        LOW=low is not None,
        PLACE=-1 if table is None else place,
        # Warps that share a block's rows have to wait for each other: one, where it can hold them.
        num_warps=max(1, min(4, block * power_of_two(head_size) * x.element_size() // 32_768)),
    )
    return out
