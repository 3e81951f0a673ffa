"""The device code of the probe: block masses of rows and what they add up to, block means.

Importing this module imports Triton, so only ``probe_triton`` does, inside functions. Logits are taken in base 2.
All addresses are int64.
"""

from __future__ import annotations

import triton
import triton.language as tl

LN2 = tl.constexpr(0.6931471805599453)
LOG2E = tl.constexpr(1.4426950408889634)


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
def row_mass_kernel(
    block_lse_ptr,
    lse_ptr,
    sink_mass_ptr,
    entropy_ptr,
    local_ptr,
    spread_ptr,
    finite_ptr,
    sinks_ptr,
    position_ptr,
    first_key_ptr,
    heads,
    count,
    key_blocks,
    block_k,
    local_blocks,
    N: tl.constexpr,
    OCTAVES: tl.constexpr,
    SINKS: tl.constexpr,
):
    """One probe row: its log-sum-exp, the sink's mass, and its block masses over the block log-sum-exps.

    Of the masses also the entropy over blocks, the sum near the diagonal and the sums by octave of distance (0: the
    first block). finite becomes 0 where the log-sum-exp of a row behind the padding is not finite.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N)
    values_ptr = block_lse_ptr + row * key_blocks
    values = tl.load(values_ptr + n, mask=n < key_blocks, other=-float("inf"))
    top = tl.max(values, 0)
    if SINKS:
        sink = tl.load(sinks_ptr + (row // count) % heads)
        top = tl.maximum(top, sink)
    shift = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp2((values - shift) * LOG2E)
    inside = tl.sum(weights, 0)
    total = inside
    if SINKS:
        sink_weight = tl.exp2((sink - shift) * LOG2E)
        total += sink_weight
        tl.store(sink_mass_ptr + row, sink_weight / total)
    lse = tl.where(total > 0, shift + tl.log2(total) * LN2, top + total)
    tl.store(lse_ptr + row, lse)
    position = tl.load(position_ptr + row)
    bad = (position >= tl.load(first_key_ptr + row // count // heads)) & ((lse - lse) != 0.0)
    tl.store(finite_ptr, 0, mask=bad)

    # NaN rows are reported by their log-sum-exp; their masses count as none.
    real = (total > 0) & (total < float("inf"))
    share = tl.where(real, 1.0 / tl.where(real, total, 1.0), 0.0)
    own = (position // block_k).to(tl.int32)
    # The masses' entropy from their logarithms, values - lse.
    logs = tl.sum(tl.where(weights > 0, weights * (values - shift), 0.0), 0)
    entropy = (inside * tl.log2(tl.where(real, total, 1.0)) * LN2 - logs) * share
    tl.store(entropy_ptr + row, tl.where(real, entropy, 0.0))
    near = tl.sum(tl.where(own - n < local_blocks, weights, 0.0), 0)
    tl.store(local_ptr + row, tl.where(real, near * share, 0.0))
    for octave in tl.static_range(OCTAVES):
        if octave == 0:
            part = tl.exp2((tl.load(values_ptr) - shift) * LOG2E)
        elif (1 << octave) <= N:
            # Distances [2^(octave - 1) - 1, 2^octave - 1), the first block aside.
            at = own + 1 - (1 << (octave - 1)) - tl.arange(0, 1 << (octave - 1))
            part = tl.load(values_ptr + at, mask=at > 0, other=-float("inf"))
            part = tl.sum(tl.exp2((part - shift) * LOG2E), 0)
        else:
            part = 0.0
        tl.store(spread_ptr + row * OCTAVES + octave, tl.where(real, part * share, 0.0))
    # The masses take the place of what every thread has read by now.
    tl.debug_barrier()
    tl.store(values_ptr + n, tl.where(real, weights * share, 0.0), mask=n < key_blocks)


@triton.jit
def block_means_kernel(
    x_ptr,
    table_ptr,
    out_ptr,
    low_ptr,
    stride_b,
    stride_h,
    stride_n,
    stride_d,
    heads,
    first,
    rows,
    blocks,
    BLOCK: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    LOW: tl.constexpr,
    PLACE: tl.constexpr,
):
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


@triton.jit
def stamp_kernel(out_ptr, place):
    """The GPU's own clock in nanoseconds."""
    now = tl.inline_asm_elementwise(
        "mov.u64 $0, %globaltimer;", "=l", [], dtype=tl.int64, is_pure=False, pack=1
    )
    tl.store(out_ptr + place, now)
