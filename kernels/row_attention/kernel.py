"""The device code of attention at given positions: tiles of rows past spans of keys, then the spans added up.

The heads of a KV head's group lie side by side in a tile, so that its rows are neighbours in position and a KV head is
read once for all of them. Rows are few and prompts long: a tile's keys are shared out among programs.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import LOG2E, base2_logits


@triton.jit
def span_kernel(
    q_ptr, k_ptr, v_ptr, at_ptr, top_ptr, sum_ptr, out_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd, stride_vb,
    stride_vh, stride_vn, stride_vd,
    units, kv_heads, group, total, row_tiles, keys, span, window, scale, softcap,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr,
    VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """ROWS of a KV head's ``total`` rows past ``span`` keys: largest logit, sum of weights, outputs; float32.

    A span that none of them reads is left as it is: see parts_kernel.
    """
    tile = tl.program_id(0) % row_tiles
    unit = (tl.program_id(0) // row_tiles % units).to(tl.int64)
    part = tl.program_id(0) // (row_tiles * units)
    batch, kv_head = unit // kv_heads, unit % kv_heads
    slot = tile * ROWS + tl.arange(0, ROWS)
    real = slot < total
    row, head = slot // group, kv_head * group + slot % group
    # Rows of the padding stand where the first one does.
    position = tl.load(at_ptr + tl.where(real, row, tile * ROWS // group)).to(tl.int32)
    nearest = tl.min(position, 0)
    begin = part * span
    end = tl.minimum(begin + span, tl.max(position, 0) + 1)
    if WINDOW:
        begin = tl.maximum(begin, (nearest - window + 1) // KEYS * KEYS)
    if begin >= end:
        return
    # Keys before the first row need no mask, nor do those after the last one's window has begun.
    free_to = tl.maximum(begin, tl.minimum(end, nearest + 1) // KEYS * KEYS)
    if WINDOW:
        free_to = begin

    d = tl.arange(0, HEAD_PADDED)
    e = tl.arange(0, VALUE_PADDED)
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + head[:, None] * stride_qh
        + row.to(tl.int64)[:, None] * stride_qn
        + d[None, :] * stride_qd,
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    )
    k_ptr += batch * stride_kb + kv_head * stride_kh
    v_ptr += batch * stride_vb + kv_head * stride_vh
    top = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    outputs = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    for start in tl.range(begin, free_to, KEYS, num_stages=STAGES):
        key = (start + tl.arange(0, KEYS)).to(tl.int64)
        k = tl.load(
            k_ptr + d[:, None] * stride_kd + key[None, :] * stride_kn, mask=(d < HEAD)[:, None], other=0.0
        )
        v = tl.load(
            v_ptr + key[:, None] * stride_vn + e[None, :] * stride_vd, mask=(e < VALUE)[None, :], other=0.0
        )
        logits = base2_logits(q, k, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        new = tl.maximum(top, tl.max(logits, 1))
        weights = tl.exp2(logits - new[:, None])
        faded = tl.exp2(top - new)
        weight = weight * faded + tl.sum(weights, 1)
        outputs = added(outputs * faded[:, None], weights, v, UPCAST, PRECISION)
        top = new
    for start in range(free_to, end, KEYS):
        key = start + tl.arange(0, KEYS)
        inside = key < keys
        far = key.to(tl.int64)
        k = tl.load(
            k_ptr + d[:, None] * stride_kd + far[None, :] * stride_kn,
            mask=(d < HEAD)[:, None] & inside[None, :],
            other=0.0,
        )
        v = tl.load(
            v_ptr + far[:, None] * stride_vn + e[None, :] * stride_vd,
            mask=inside[:, None] & (e < VALUE)[None, :],
            other=0.0,
        )
        logits = base2_logits(q, k, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        seen = (key[None, :] <= position[:, None]) & (key < end)[None, :]
        if WINDOW:
            seen &= key[None, :] > position[:, None] - window
        logits = tl.where(seen, logits, -float("inf"))
        new = tl.maximum(top, tl.max(logits, 1))
        base = tl.where(new == -float("inf"), 0.0, new)
        weights = tl.exp2(logits - base[:, None])
        faded = tl.exp2(top - base)
        weight = weight * faded + tl.sum(weights, 1)
        outputs = added(outputs * faded[:, None], weights, v, UPCAST, PRECISION)
        top = new

    left = (part * units + unit) * row_tiles * ROWS + slot
    tl.store(top_ptr + left, top)
    tl.store(sum_ptr + left, weight)
    tl.store(out_ptr + left[:, None] * VALUE_PADDED + e[None, :], outputs)


@triton.jit
def added(outputs, weights, values, UPCAST: tl.constexpr, PRECISION: tl.constexpr):
    """outputs + weights [R, K] @ values [K, D], weights rounded to the values' type."""
    if UPCAST:
        return tl.dot(weights, values.to(tl.float32), outputs, input_precision="ieee")
    return tl.dot(weights.to(values.dtype), values, outputs, input_precision=PRECISION)


@triton.jit
def parts_kernel(
    at_ptr, sinks_ptr, top_ptr, sum_ptr, out_ptr, joined_ptr, units, kv_heads, group, count, padded, span, window,
    ROWS: tl.constexpr, VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr, SINKS: tl.constexpr,
    WINDOW: tl.constexpr,
):  # fmt: skip
    """ROWS rows of a KV head, their spans added up: joined [B, H, count, VALUE]."""
    unit = tl.program_id(1).to(tl.int64)
    slot = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = slot < group * count
    row = slot // group
    head = unit * group + slot % group  # of all prompts
    position = tl.load(at_ptr + row, mask=real, other=0).to(tl.int32)
    e = tl.arange(0, VALUE_PADDED)
    last = position // span
    first = last * 0
    if WINDOW:
        first = tl.maximum(position - window + 1, 0) // span
    top = tl.full([ROWS], -float("inf"), tl.float32)
    weight = tl.zeros([ROWS], tl.float32)
    outputs = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    if SINKS:
        top = tl.load(sinks_ptr + unit % kv_heads * group + slot % group).to(tl.float32) * LOG2E
        weight += 1.0
    for part in range(tl.min(first, 0), tl.max(last, 0) + 1):
        live = real & (part >= first) & (part <= last)
        place = (part * units + unit) * padded + slot
        here = tl.load(top_ptr + place, mask=live, other=-float("inf"))
        new = tl.maximum(top, here)
        base = tl.where(new == -float("inf"), 0.0, new)
        faded, fresh = tl.exp2(top - base), tl.exp2(here - base)
        weight = weight * faded + fresh * tl.load(sum_ptr + place, mask=live, other=0.0)
        found = tl.load(out_ptr + place[:, None] * VALUE_PADDED + e[None, :], mask=live[:, None], other=0.0)
        outputs = outputs * faded[:, None] + fresh[:, None] * found
        top = new
    tl.store(
        joined_ptr + (head[:, None] * count + row[:, None]) * VALUE + e[None, :],
        outputs / weight[:, None],
        mask=real[:, None] & (e < VALUE)[None, :],
    )
