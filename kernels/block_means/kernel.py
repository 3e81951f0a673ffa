"""The device code of block means. All addresses are int64."""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import pointer_from


@triton.jit
def block_means_kernel(
    x_ptr, table_ptr, out_ptr, low_ptr, stride_b, stride_h, stride_n, stride_d, heads, first, rows, blocks,
    BLOCK: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr, LOW: tl.constexpr,
    PLACE: tl.constexpr,
):  # fmt: skip
    """Mean of one block of rows [first, first + rows), of those from low[batch] on where given."""
    if PLACE >= 0:
        x_ptr = pointer_from(table_ptr, PLACE, x_ptr)
    block = tl.program_id(0)
    unit = tl.program_id(1).to(tl.int64)
    batch, head = unit // heads, unit % heads
    at = block * BLOCK + tl.arange(0, BLOCK)
    d = tl.arange(0, HEAD_PADDED)
    real = at < rows
    if LOW:
        real = real & (at >= tl.load(low_ptr + batch))
    x = tl.load(
        x_ptr
        + batch * stride_b
        + head * stride_h
        + (first + at).to(tl.int64)[:, None] * stride_n
        + d[None, :] * stride_d,
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    )
    mean = tl.sum(x.to(tl.float32), 0) / tl.maximum(tl.sum(real.to(tl.float32), 0), 1.0)
    tl.store(out_ptr + (unit * blocks + block) * HEAD + d, mean, mask=d < HEAD)
