"""The device code of the recent rows: their mass by column and, as bands of KV blocks, by diagonal.

Importing this module imports Triton, so only ``probe_triton`` does, inside a function.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.probe_kernel import LOG2E, base2_logits, pointer_from


@triton.jit
def recent_kernel(
    q_ptr,
    k_ptr,
    table_ptr,
    lse_ptr,
    column_ptr,
    part_ptr,
    first_key_ptr,
    stride_qb,
    stride_qh,
    stride_qn,
    stride_qd,
    stride_kb,
    stride_kh,
    stride_kn,
    stride_kd,
    heads,
    group,
    first_row,
    count,
    first,
    keys,
    tiles,
    chunk,
    local_offsets,
    first_edge,
    scale,
    softcap,
    ROWS: tl.constexpr,
    KEYS: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
    ADD: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    INDIRECT: tl.constexpr,
):
    """Up to ROWS consecutive rows from position ``first`` x a chunk of tiles of KEYS keys: masses by column and offset.

    Offsets less the phase are cut into steps of STEP, which divides KEYS, so every tile meets STEPS of them at the
    same places: a step ends before row r of key j where r - j = first_edge + step * STEP. Each key's mass in a step
    leaves, and that mass times the offset less the step's first one: what weighs offsets piecewise linearly, as a band
    does, needs no more.
    """
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
        k_ptr = pointer_from(table_ptr, 1, k_ptr)
    unit = tl.program_id(1).to(tl.int64)
    batch, head = unit // heads, unit % heads
    r = tl.arange(0, ROWS)
    slot = tl.arange(0, KEYS)
    d = tl.arange(0, HEAD_PADDED)
    real = r < count
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + head * stride_qh
        + (first_row + r).to(tl.int64)[None, :] * stride_qn
        + d[:, None] * stride_qd,
        mask=real[None, :] & (d < HEAD)[:, None],
        other=0.0,
    )
    lse = tl.load(lse_ptr + unit * count + r, mask=real, other=float("inf")) * LOG2E
    k_head = k_ptr + batch * stride_kb + (head // group) * stride_kh + d[None, :] * stride_kd
    lowest = tl.load(first_key_ptr + batch)
    position = first + r
    along = r.to(tl.float32)[None, :]
    begin = tl.program_id(0) * chunk
    # Keys stand along the first axis, so that every sum over rows runs along the second.
    for tile in range(begin, tl.minimum(begin + chunk, tiles)):
        key = (tile * KEYS + slot).to(tl.int64)
        part = tl.load(
            k_head + key[:, None] * stride_kn, mask=(d < HEAD)[None, :] & (key < keys)[:, None], other=0.0
        )
        logits = base2_logits(part, q, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        mass = tl.exp2(logits - lse[None, :])
        if (tile + 1) * KEYS > first or tile * KEYS < lowest or count < ROWS:
            seen = real[None, :] & (key[:, None] <= position[None, :]) & (key >= lowest)[:, None]
            mass = tl.where(seen, mass, 0.0)
        column = tl.sum(mass, 1)
        moment = tl.sum(mass * along, 1)
        # From the step's first offset on, by step: differences are the steps' own sums.
        from_here, moment_from_here = column, moment
        for step in tl.static_range(STEPS):
            edge = first_edge + step * STEP
            if step + 1 < STEPS:
                later = tl.where(r[None, :] - slot[:, None] >= edge, mass, 0.0)
                beyond, moment_beyond = tl.sum(later, 1), tl.sum(later * along, 1)
            else:
                beyond, moment_beyond = column * 0.0, column * 0.0
            own = from_here - beyond
            place = part_ptr + (((unit * tiles + tile) * STEPS + step) * 2) * KEYS + slot
            tl.store(place, own)
            tl.store(
                place + KEYS, moment_from_here - moment_beyond - own * (slot + edge - STEP).to(tl.float32)
            )
            from_here, moment_from_here = beyond, moment_beyond
        if (tile + 1) * KEYS > first - local_offsets:
            mass = tl.where(key[:, None] <= (position - local_offsets)[None, :], mass, 0.0)
            column = tl.sum(mass, 1)
        place = column_ptr + unit * keys + key
        if ADD:
            column += tl.load(place, mask=key < keys, other=0.0)
        tl.store(place, column, mask=key < keys)


@triton.jit
def band_kernel(
    part_ptr,
    band_ptr,
    tiles,
    key_blocks,
    nearest,
    KEYS: tl.constexpr,
    STEP: tl.constexpr,
    STEPS: tl.constexpr,
    LAST: tl.constexpr,
    N: tl.constexpr,
    ADD: tl.constexpr,
):
    """Band masses of N distances from recent_kernel's parts; step s of tile t is step nearest + s - t * RATIO of all.

    Band D weighs an offset by how many rows of a query block it serves (engine/bands.py): that rises from 0 to STEP
    along step D - 1, and falls again along step D + LAST - 1, LAST = block_q / STEP.
    """
    RATIO: tl.constexpr = KEYS // STEP
    unit = tl.program_id(1).to(tl.int64)
    distance = tl.program_id(0) * N + tl.arange(0, N)
    slot = tl.arange(0, KEYS)
    place = band_ptr + unit * key_blocks + distance
    total = tl.zeros([N], dtype=tl.float32)
    if ADD:
        total += tl.load(place, mask=distance < key_blocks, other=0.0)
    for reached in tl.static_range(LAST + 1):
        for step in tl.static_range(STEPS):
            back = nearest + step - (distance + reached - 1)
            tile = back // RATIO
            meets = (back >= 0) & (back % RATIO == 0) & (tile < tiles)
            part = part_ptr + (((unit * tiles + tile) * STEPS + step) * 2)[:, None] * KEYS + slot[None, :]
            if reached > 0:
                total += STEP * tl.sum(tl.load(part, mask=meets[:, None], other=0.0), 1)
            if reached == 0:
                total += tl.sum(tl.load(part + KEYS, mask=meets[:, None], other=0.0), 1)
            if reached == LAST:
                total -= tl.sum(tl.load(part + KEYS, mask=meets[:, None], other=0.0), 1)
    tl.store(place, total, mask=distance < key_blocks)
