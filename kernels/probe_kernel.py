"""The device code of the probe: block log-sum-exps, block means, row descriptors.

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
def pointer_from(table_ptr, place: tl.constexpr, like):
    """A tensor's base from a table of addresses, so that a captured graph can be replayed on other tensors."""
    address = tl.multiple_of(tl.load(table_ptr + place), 16)
    return tl.multiple_of(address.to(tl.pointer_type(like.dtype.element_ty), bitcast=True), 16)


@triton.jit
def block_lse_kernel(
    q_ptr,
    k_ptr,
    table_ptr,
    out_ptr,
    order_ptr,
    position_ptr,
    first_key_ptr,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_kd,
    kv_heads,
    group,
    count,
    keys,
    key_blocks,
    chunk,
    shift,
    scale,
    softcap,
    ROWS: tl.constexpr,
    BLOCK: tl.constexpr,
    BLOCKS: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    KEY_START: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    INDIRECT: tl.constexpr,
):
    """Rows of one KV head in order of position x a chunk of KV blocks, BLOCKS at a time (chunk is a multiple of them).

    shift: position of a row less its place in q. Blocks of a tile share a row's maximum: one that lies 126 bits below
    it holds no mass.
    """
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
        k_ptr = pointer_from(table_ptr, 1, k_ptr)
    unit = tl.program_id(2).to(tl.int64)
    batch, kv_head = unit // kv_heads, unit % kv_heads
    at = tl.program_id(1) * ROWS + tl.arange(0, ROWS)
    real = at < group * count
    flat = tl.load(order_ptr + unit * group * count + at, mask=real, other=0)
    position = tl.load(position_ptr + unit * group * count + at, mask=real, other=-1)
    head = kv_head * group + flat // count
    d = tl.arange(0, HEAD_PADDED)
    slot = tl.arange(0, BLOCKS * BLOCK)
    some = tl.arange(0, BLOCKS)
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + head[:, None] * stride_qh
        + (position - shift)[:, None] * stride_qn
        + d[None, :] * stride_qd,
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    )
    place = out_ptr + ((batch * kv_heads * group + head) * count + flat % count) * key_blocks
    k_head = k_ptr + batch * stride_kb + kv_head * stride_kh + d[:, None] * stride_kd
    lowest = tl.zeros([], dtype=tl.int64)
    if KEY_START:
        lowest = tl.load(first_key_ptr + batch)

    last = tl.max(position, 0)
    # Rows past the end have position -1 and would make every block a masked one.
    least = tl.min(tl.where(real, position, last), 0)
    begin = (tl.program_id(0) * chunk).to(tl.int64)
    end = tl.minimum(begin + chunk, key_blocks)
    seen_end = tl.minimum(tl.maximum(last // BLOCK + 1, begin), end)
    free_end = tl.minimum(tl.maximum((least + 1) // BLOCK, begin), seen_end)
    free_end = begin + (free_end - begin) // BLOCKS * BLOCKS
    if KEY_START:
        free_end = begin

    for n in range(begin, free_end, BLOCKS):
        key = n * BLOCK + slot
        tile = tl.load(k_head + key[None, :] * stride_kn, mask=(d < HEAD)[:, None], other=0.0)
        logits = base2_logits(q, tile, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        top = tl.max(logits, 1)
        weights = tl.exp2(logits - top[:, None])
        total = tl.sum(tl.reshape(weights, [ROWS, BLOCKS, BLOCK]), 2)
        value = (top[:, None] + tl.log2(total)) * LN2
        tl.store(place[:, None] + n + some[None, :], value, mask=real[:, None])
    for n in range(free_end, seen_end, BLOCKS):
        key = n * BLOCK + slot
        tile = tl.load(
            k_head + key[None, :] * stride_kn, mask=(d < HEAD)[:, None] & (key < keys)[None, :], other=0.0
        )
        logits = base2_logits(q, tile, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        seen = (key[None, :] <= position[:, None]) & (key >= lowest)[None, :]
        logits = tl.where(seen, logits, -float("inf"))
        top = tl.max(logits, 1)
        top = tl.where(top == -float("inf"), 0.0, top)
        weights = tl.exp2(logits - top[:, None])
        total = tl.sum(tl.reshape(weights, [ROWS, BLOCKS, BLOCK]), 2)
        value = (top[:, None] + tl.log2(total)) * LN2
        tl.store(place[:, None] + n + some[None, :], value, mask=real[:, None] & (n + some < end)[None, :])
    for n in range(seen_end, end):
        tl.store(place + n, tl.full([ROWS], -float("inf"), tl.float32), mask=real)


@triton.jit
def row_mass_kernel(
    block_lse_ptr,
    lse_ptr,
    sink_mass_ptr,
    sinks_ptr,
    heads,
    count,
    key_blocks,
    N: tl.constexpr,
    SINKS: tl.constexpr,
):
    """One probe row: its log-sum-exp, the sink's mass, and its block masses over the block log-sum-exps."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N)
    place = block_lse_ptr + row * key_blocks + n
    values = tl.load(place, mask=n < key_blocks, other=-float("inf"))
    top = tl.max(values, 0)
    if SINKS:
        sink = tl.load(sinks_ptr + (row // count) % heads)
        top = tl.maximum(top, sink)
    shift = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp2((values - shift) * LOG2E)
    total = tl.sum(weights, 0)
    if SINKS:
        sink_weight = tl.exp2((sink - shift) * LOG2E)
        total += sink_weight
        tl.store(sink_mass_ptr + row, sink_weight / total)
    tl.store(lse_ptr + row, tl.where(total > 0, shift + tl.log2(total) * LN2, top + total))
    weights = weights / tl.where(total > 0, total, 1.0)
    # NaN rows are reported by their log-sum-exp; their masses count as none.
    tl.store(place, tl.where(weights == weights, weights, 0.0), mask=n < key_blocks)


@triton.jit
def describe_kernel(
    mass_ptr,
    position_ptr,
    entropy_ptr,
    local_ptr,
    spread_ptr,
    key_blocks,
    block_k,
    local_blocks,
    octaves,
    N: tl.constexpr,
    OCTAVES: tl.constexpr,
):
    """One probe row: entropy over blocks, mass near the diagonal, mass by octave of distance (0: the first block)."""
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N)
    mass = tl.load(mass_ptr + row * key_blocks + n, mask=n < key_blocks, other=0.0)
    own = tl.load(position_ptr + row) // block_k
    distance = tl.maximum(own - n, 0)
    tl.store(
        entropy_ptr + row, -tl.sum(tl.where(mass > 0, mass * tl.log2(tl.maximum(mass, 1e-38)) * LN2, 0.0), 0)
    )
    tl.store(local_ptr + row, tl.sum(tl.where(distance < local_blocks, mass, 0.0), 0))
    octave = tl.arange(0, OCTAVES)
    prefix = tl.cumsum(mass, 0)
    # Distances [2^(o - 1) - 1, 2^o - 1) of octave o are the blocks (own - high, own - low], the first block aside.
    top = own - ((1 << tl.maximum(octave - 1, 0)) - 1)
    bottom = tl.maximum(own - ((1 << octave) - 1), 0)
    inside = tl.gather(prefix, tl.maximum(top, 0).to(tl.int32), 0) - tl.gather(prefix, bottom.to(tl.int32), 0)
    inside = tl.where(
        octave == 0, tl.sum(tl.where(n == 0, mass, 0.0), 0), tl.where(top > bottom, inside, 0.0)
    )
    tl.store(spread_ptr + row * octaves + octave, inside, mask=octave < octaves)


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
