"""The device code of exact rows: a few rows of every query head against all keys, which are read once.

The rows of a KV head's query
heads, in order of position, form tiles; a program takes a tile past ``span`` keys and leaves a softmax of its own
behind, which the second kernel adds up and compares with what the attention function wrote.

Float32 throughout: products of 16-bit queries and keys are exact in float32, and tensor cores add them there; a weight
is the sum of three 16-bit numbers (24 bits), each of whose products with a 16-bit value is exact in float32, too.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import LOG2E, base2_logits

TINY = tl.constexpr(1e-30)
NO_KEY = tl.constexpr(2147483647)


@triton.jit
def weighted_sum(total, weights, values, RANGE: tl.constexpr, UPCAST: tl.constexpr):
    """total + RANGE * weights [R, K] @ values [K, D], weights float32 of at most 1.

    RANGE: a power of two that keeps the small weights above the least number of the values' type.
    """
    if UPCAST or values.dtype == tl.float32:
        return tl.dot(weights * RANGE, values.to(tl.float32), total, input_precision="ieee")
    rest = weights * RANGE
    for _ in tl.static_range(3):
        part = rest.to(values.dtype)
        total = tl.dot(part, values, total)
        rest -= part.to(tl.float32)
    return total


@triton.jit
def attend_rows_kernel(
    q_ptr, k_ptr, v_ptr, place_ptr, first_key_ptr, blocks_ptr, single_ptr, top_ptr, sum_ptr, reach_ptr,
    largest_ptr, out_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd, stride_vb,
    stride_vh, stride_vn, stride_vd,
    units, kv_heads, group, count, row_tiles, keys, key_blocks, span, shift, window, scale, softcap,
    ROWS: tl.constexpr, KEYS: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr,
    VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr, BLOCK: tl.constexpr, SINGLE: tl.constexpr,
    PLANNED: tl.constexpr, KEY_START: tl.constexpr, WINDOW: tl.constexpr, SOFTCAP: tl.constexpr,
    RANGE: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """ROWS rows of one KV head past ``span`` keys: their largest logit, sum of weights, sum of weights ||v||, outputs.

    With a plan, also the last three over the keys that it keeps. place int32 [2, units, group * count]: each row's
    query, in order, and its number among the rows of its KV head. BLOCK: keys of a kept block, 0 without any; SINGLE:
    whether keys are kept one by one. PLANNED: the key of the largest logit, too, k as -1 - k where the plan does not
    keep it.
    """
    # Tiles of rows that meet the same keys lie beside each other.
    tile = tl.program_id(0) % row_tiles
    unit = (tl.program_id(0) // row_tiles % units).to(tl.int64)
    part = tl.program_id(0) // (row_tiles * units)
    batch, kv_head = unit // kv_heads, unit % kv_heads
    rows = group * count
    at = tile * ROWS + tl.arange(0, ROWS)
    real = at < rows
    row = tl.load(place_ptr + unit * rows + at, mask=real, other=0)
    number = tl.load(place_ptr + (units + unit) * rows + at, mask=real, other=0)
    position = tl.where(real, row + shift, -1)
    begin = part * span
    end = tl.minimum(begin + span, tl.max(position, 0) + 1)
    if begin >= end:
        return
    lowest = tl.zeros([ROWS], dtype=tl.int32)
    if KEY_START:
        lowest += tl.load(first_key_ptr + batch).to(tl.int32)
    if WINDOW:
        lowest = tl.maximum(lowest, position - window + 1)
    first = tl.maximum(begin, tl.min(tl.where(real, lowest, NO_KEY), 0) // KEYS * KEYS)

    d = tl.arange(0, HEAD_PADDED)
    e = tl.arange(0, VALUE_PADDED)
    head = kv_head * group + number // count
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
    kept_row = unit * rows + number

    top = tl.full([ROWS], -float("inf"), tl.float32)
    total = tl.zeros([ROWS], tl.float32)
    reach = tl.zeros([ROWS], tl.float32)
    outputs = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
    largest = tl.zeros([ROWS], tl.int32)
    if BLOCK or SINGLE:
        kept_total = tl.zeros([ROWS], tl.float32)
        kept_reach = tl.zeros([ROWS], tl.float32)
        kept_outputs = tl.zeros([ROWS, VALUE_PADDED], tl.float32)
        largest_kept = tl.zeros([ROWS], tl.int32)
    for start in tl.range(first, end, KEYS, num_stages=STAGES):
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
        seen = (key[None, :] <= position[:, None]) & (key[None, :] >= lowest[:, None])
        logits = tl.where(seen, logits, -float("inf"))
        here = tl.max(logits, 1)
        new = tl.maximum(top, here)
        base = tl.where(new == -float("inf"), 0.0, new)
        weights = tl.exp2(logits - base[:, None])
        faded = tl.exp2(top - base)
        wide = v.to(tl.float32)
        norms = tl.sqrt(tl.sum(wide * wide, 1))
        total = total * faded + tl.sum(weights, 1)
        reach = reach * faded + tl.sum(weights * norms[None, :], 1)
        outputs = weighted_sum(outputs * faded[:, None], weights, v, RANGE, UPCAST)
        if PLANNED:
            nearest = tl.min(tl.where(logits == here[:, None], key[None, :], NO_KEY), 1)
            largest = tl.where(here > top, nearest, largest)
        if BLOCK or SINGLE:
            kept = tl.zeros([ROWS, KEYS], tl.int32)
            if BLOCK:
                if BLOCK % KEYS == 0:
                    block = tl.load(blocks_ptr + kept_row * key_blocks + start // BLOCK, mask=real, other=0)
                    kept += block.to(tl.int32)[:, None]
                else:
                    kept += tl.load(
                        blocks_ptr + kept_row[:, None] * key_blocks + (key // BLOCK)[None, :],
                        mask=real[:, None] & inside[None, :],
                        other=0,
                    ).to(tl.int32)
            if SINGLE:
                kept += tl.load(
                    single_ptr + kept_row[:, None] * keys + far[None, :],
                    mask=real[:, None] & inside[None, :],
                    other=0,
                ).to(tl.int32)
            of_largest = tl.sum(tl.where(key[None, :] == nearest[:, None], kept, 0), 1)
            largest_kept = tl.where(here > top, of_largest, largest_kept)
            weights = tl.where(kept > 0, weights, 0.0)
            kept_total = kept_total * faded + tl.sum(weights, 1)
            kept_reach = kept_reach * faded + tl.sum(weights * norms[None, :], 1)
            kept_outputs = weighted_sum(kept_outputs * faded[:, None], weights, v, RANGE, UPCAST)
        top = new

    padded = row_tiles * ROWS
    left = (part * units + unit) * padded + at
    here_outputs = left[:, None] * VALUE_PADDED + e[None, :]
    tl.store(top_ptr + left, top)
    tl.store(sum_ptr + left, total)
    tl.store(reach_ptr + left, reach)
    tl.store(out_ptr + here_outputs, outputs)
    if PLANNED:
        if BLOCK or SINGLE:
            # A row's next numbers lie behind those of all rows and parts.
            others = tl.num_programs(0).to(tl.int64) * ROWS
            tl.store(sum_ptr + others + left, kept_total)
            tl.store(reach_ptr + others + left, kept_reach)
            tl.store(out_ptr + others * VALUE_PADDED + here_outputs, kept_outputs)
            largest = tl.where(largest_kept > 0, largest, -1 - largest)
        tl.store(largest_ptr + left, largest)


@triton.jit
def added_outputs(
    out_ptr, top_ptr, shift, first, parts, step, VALUE_PADDED: tl.constexpr, SOME: tl.constexpr
):
    """Sum of a row's outputs over its parts, each faded to the row's own maximum: [VALUE_PADDED]."""
    e = tl.arange(0, VALUE_PADDED)
    found = tl.zeros([VALUE_PADDED], tl.float32)
    for start in range(0, parts, SOME):
        part = start + tl.arange(0, SOME)
        live = part < parts
        place = first + part * step
        faded = tl.exp2(tl.load(top_ptr + place, mask=live, other=-float("inf")) - shift)
        outputs = tl.load(out_ptr + place[:, None] * VALUE_PADDED + e[None, :], mask=live[:, None], other=0.0)
        found += tl.sum(faded[:, None] * outputs, 0)
    return found


@triton.jit
def or_infinite(x, real):
    """x; infinite where it is NaN, or not real."""
    return tl.where(real & (x == x), x, float("inf"))


@triton.jit
def compare_rows_kernel(
    place_ptr, ran_ptr, sinks_ptr, top_ptr, sum_ptr, reach_ptr, largest_ptr, out_ptr, value_ptr, flag_ptr,
    key_ptr, stride_ob, stride_oh, stride_on, stride_od,
    units, kv_heads, group, count, padded, parts, span, shift,
    VALUE: tl.constexpr, VALUE_PADDED: tl.constexpr, PARTS: tl.constexpr, SOME: tl.constexpr,
    SINKS: tl.constexpr, PLANNED: tl.constexpr, KEPT: tl.constexpr, RANGE: tl.constexpr,
):  # fmt: skip
    """One row: its parts added up, and the function's output held against them.

    value float32 [2 or 5, rows of all], flag uint8 [1 or 2, rows of all], key int64: see ``contract.ExactRows``.
    """
    rows = group * count
    unit = (tl.program_id(0) // rows).to(tl.int64)
    at = tl.program_id(0) % rows
    batch, kv_head = unit // kv_heads, unit % kv_heads
    row = tl.load(place_ptr + unit * rows + at)
    number = tl.load(place_ptr + (units + unit) * rows + at)
    head = kv_head * group + number // count
    e = tl.arange(0, VALUE_PADDED)
    ran = tl.load(
        ran_ptr + batch * stride_ob + head * stride_oh + row.to(tl.int64) * stride_on + e * stride_od,
        mask=e < VALUE,
        other=0.0,
    ).to(tl.float32)
    finite = tl.sum(((ran - ran) != 0.0).to(tl.int32), 0) == 0

    # Parts behind the row's position were not computed.
    used = (row + shift) // span + 1
    part = tl.arange(0, PARTS)
    step = tl.cast(units, tl.int64) * padded
    first = unit * padded + at
    place = first + part * step
    tops = tl.load(top_ptr + place, mask=part < used, other=-float("inf"))
    top = tl.max(tops, 0)
    if SINKS:
        sink = tl.load(sinks_ptr + head) * LOG2E
        top = tl.maximum(top, sink)
    top = tl.where(top == -float("inf"), 0.0, top)
    faded = tl.exp2(tops - top)
    inside = tl.sum(faded * tl.load(sum_ptr + place, mask=part < used, other=0.0), 0)
    total = inside
    if SINKS:
        sink_weight = tl.exp2(sink - top)
        total += sink_weight
    reach = tl.sum(faded * tl.load(reach_ptr + place, mask=part < used, other=0.0), 0) / total
    exact = added_outputs(out_ptr, top_ptr, top, first, used, step, VALUE_PADDED, SOME) / (total * RANGE)
    apart = tl.sqrt(tl.sum((ran - exact) * (ran - exact), 0))
    norm = tl.maximum(tl.sqrt(tl.sum(exact * exact, 0)), TINY)
    everything = tl.cast(units, tl.int64) * rows
    here = unit * rows + number
    tl.store(value_ptr + here, or_infinite(apart / norm, finite))
    deviation = or_infinite(apart / tl.maximum(reach, TINY), finite)
    tl.store(value_ptr + everything + here, deviation)
    tl.store(flag_ptr + here, finite.to(tl.uint8))
    if PLANNED:
        keys = tl.load(largest_ptr + place, mask=part < used, other=NO_KEY)
        plain = tl.where(keys < 0, -1 - keys, keys)
        largest = tl.min(tl.where(tops == tl.max(tops, 0), plain, NO_KEY), 0)
        known = total == total
        mass = tl.where(known, 1.0, 0.0)
        plan_error = tl.where(known, 0.0, float("inf"))
        disagreement = deviation
        hit = known & (tl.max(tops, 0) > -float("inf"))
        if KEPT:
            others = parts * step
            kept = tl.sum(faded * tl.load(sum_ptr + others + place, mask=part < used, other=0.0), 0)
            mass = kept / total
            if SINKS:
                mass += sink_weight / total
            mass = tl.where(known, tl.minimum(mass, 1.0), 0.0)
            share = tl.maximum(mass, TINY)
            sparse = added_outputs(
                out_ptr + others * VALUE_PADDED, top_ptr, top, first, used, step, VALUE_PADDED, SOME
            ) / (total * RANGE * share)
            kept_reach = tl.sum(
                faded * tl.load(reach_ptr + others + place, mask=part < used, other=0.0), 0
            ) / (total * share)
            # A row of which the plan reads nothing has output 0, and is measured against what the exact row reads.
            read = tl.where(mass > 0, kept_reach, reach)
            gap = tl.sqrt(tl.sum((exact - sparse) * (exact - sparse), 0))
            plan_error = or_infinite(gap / norm, known)
            off = tl.sqrt(tl.sum((ran - sparse) * (ran - sparse), 0))
            disagreement = or_infinite(off / tl.maximum(read, TINY), finite)
            kept_here = tl.sum(((plain == largest) & (keys >= 0) & (part < used)).to(tl.int32), 0) > 0
            hit = hit & kept_here
        # A sink so large that the largest weight is 0 leaves nothing that could be kept.
        hit = hit & (tl.max(faded, 0) / total > 0)
        tl.store(value_ptr + 2 * everything + here, mass)
        tl.store(value_ptr + 3 * everything + here, plan_error)
        tl.store(value_ptr + 4 * everything + here, disagreement)
        tl.store(flag_ptr + everything + here, hit.to(tl.uint8))
        tl.store(key_ptr + here, tl.where(known, largest, 0).to(tl.int64))
