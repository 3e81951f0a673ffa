"""Device functions that several kernels call: logits, places by counting, addresses, sums of rows."""

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)
NEVER = tl.constexpr(255)


@triton.jit
def base2_logits(
    q, keys, scale, softcap, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr
):
    """Base-2 logits [R, K] of q [R, D] and keys [D, K]; scale is natural."""
    if UPCAST:
        logits = tl.dot(q.to(tl.float32), keys.to(tl.float32), input_precision="ieee")
    else:
        logits = tl.dot(q, keys, input_precision=PRECISION)
    if SOFTCAP:
        # tanh(x) = 2 sigmoid(2 x) - 1.
        return (softcap * LOG2E) * (2.0 * tl.sigmoid(logits * (2.0 * scale / softcap)) - 1.0)
    return logits * (scale * LOG2E)


@triton.jit
def places_of(positions_ptr, position, at, count):
    """Places int32 of the rows ``at``, which stand at position, among count positions in order; ties by number.

    A row's place is the number of rows before it: there are some thousand, so counting them is faster than sorting.
    """
    place = at * 0
    others = tl.arange(0, 256)
    for start in range(0, count, 256):
        other_at = start + others
        other = tl.load(positions_ptr + other_at, mask=other_at < count, other=2147483647).to(tl.int32)
        equal = (other[None, :] == position[:, None]) & (other_at[None, :] < at[:, None])
        place += tl.sum(((other[None, :] < position[:, None]) | equal).to(tl.int32), 1)
    return place


@triton.jit
def pointer_from(table_ptr, place: tl.constexpr, like):
    """A tensor's base from a table of addresses, so that a captured graph can be replayed on other tensors."""
    address = tl.multiple_of(tl.load(table_ptr + place), 16)
    return tl.multiple_of(address.to(tl.pointer_type(like.dtype.element_ty), bitcast=True), 16)


@triton.jit
def blocks_of(
    query_block, first_key_ptr, batch, position, segment_keys, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):
    """KV blocks of a query block's first row, of its last row, and of the prompt's first real key."""
    first = position + query_block * BLOCK_Q
    last = (tl.minimum(first + BLOCK_Q, segment_keys) - 1) // BLOCK_K
    sink = (tl.load(first_key_ptr + batch) // BLOCK_K).to(tl.int32)
    return first // BLOCK_K, last, sink


@triton.jit
def of_head(tensors, STRIDES: tl.constexpr, family, batch, head, size):
    """Where a head's ``size`` elements begin in one of some tensors [B, H, ...]; see common.head_strides."""
    found = tensors[0] + (batch * STRIDES[0][0] + head * STRIDES[0][1]) * size
    for other in tl.static_range(1, len(tensors)):
        if family == other:
            found = tensors[other] + (batch * STRIDES[other][0] + head * STRIDES[other][1]) * size
    return found


@triton.jit
def row_sum(base, rows, width, ROWS: tl.constexpr, C: tl.constexpr):
    """Sum of float32 rows [rows, width] in float64: [C]."""
    row = tl.arange(0, ROWS)
    c = tl.arange(0, C)
    total = tl.zeros([ROWS, C], tl.float64)
    for start in range(0, rows, ROWS):
        inside = (start + row < rows)[:, None] & (c < width)[None, :]
        x = tl.load(base + (start + row)[:, None] * width + c[None, :], mask=inside, other=0.0)
        total += x.to(tl.float64)
    return tl.sum(total, 0)


@triton.jit
def row_mean(base, rows, width, ROWS: tl.constexpr, C: tl.constexpr):
    """Mean of float32 rows [rows, width], rounded to float32, as float64: [C]."""
    return (row_sum(base, rows, width, ROWS, C) / rows).to(tl.float32).to(tl.float64)
