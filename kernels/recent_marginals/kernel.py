"""The device code of the recent rows: their mass by column and, as bands of KV blocks, by diagonal.

A band weighs offsets piecewise linearly (naive.py): a ramp up, a plateau, a ramp down. So a tile's masses are
multiplied by that ramp and added along the keys, two heads a key tile, and no tile is sheared. Measured on an H200 at
131,072 tokens and 32 heads: 217 us with the sum over tiles; 329 when the mass and the moment of each key left the
kernel by steps of 64 offsets; 700 with sheared tiles.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import LOG2E, base2_logits, pointer_from


@triton.jit
def recent_kernel(
    q_ptr, k_ptr, table_ptr, lse_ptr, column_ptr, part_ptr, first_key_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd, stride_kb, stride_kh, stride_kn, stride_kd,
    heads, groups, first_row, count, first, keys, tiles, chunk, local_offsets, first_edge, scale, softcap,
    ROWS: tl.constexpr, HEADS: tl.constexpr, KEYS: tl.constexpr, LANES: tl.constexpr, STEP: tl.constexpr,
    STEPS: tl.constexpr, ADD: tl.constexpr, HEAD: tl.constexpr, HEAD_PADDED: tl.constexpr,
    SOFTCAP: tl.constexpr, UPCAST: tl.constexpr, PRECISION: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """Up to ROWS consecutive rows of HEADS heads from position ``first`` x a chunk of tiles of KEYS keys: masses by
    column and offset.

    The heads read the same keys; groups: how many times HEADS fit the heads of a KV head. Offsets less the phase are
    cut into steps of STEP, which divides KEYS, so every tile meets STEPS of them at the same places: step s ends
    before row r of key j where r - j = first_edge + s * STEP. Per tile the mass leaves and, per step, that mass times
    how far, from 0 to STEP, each offset has come through the step: what weighs offsets by ramps, as a band does, needs
    no more. Both are summed over LANES keys, which a warp holds: a sum over the tile would make warps wait for each
    other.
    """
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
        k_ptr = pointer_from(table_ptr, 1, k_ptr)
    unit = tl.program_id(1).to(tl.int64)
    batch, head = unit * HEADS // heads, unit * HEADS % heads
    some = tl.arange(0, HEADS)
    r = tl.arange(0, ROWS)
    slot = tl.arange(0, KEYS)
    lanes = tl.arange(0, KEYS // LANES)
    d = tl.arange(0, HEAD_PADDED)
    real = r < count
    # Rows of one head, then of the next.
    rows = tl.arange(0, HEADS * ROWS)
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + (head + rows // ROWS)[None, :] * stride_qh
        + (first_row + rows % ROWS).to(tl.int64)[None, :] * stride_qn
        + d[:, None] * stride_qd,
        mask=(rows % ROWS < count)[None, :] & (d < HEAD)[:, None],
        other=0.0,
    )
    lse_place = lse_ptr + (unit * HEADS + some)[:, None] * count + r[None, :]
    lse = tl.load(lse_place, mask=real[None, :], other=float("inf")) * LOG2E
    k_head = k_ptr + batch * stride_kb + (head // HEADS // groups) * stride_kh + d[None, :] * stride_kd
    lowest = tl.load(first_key_ptr + batch)
    position = (first + r)[None, None, :]
    along = r.to(tl.float32)[None, None, :]
    begin = tl.program_id(0) * chunk
    # Keys stand along the first axis, so that every sum over rows runs along the last.
    for tile in range(begin, tl.minimum(begin + chunk, tiles)):
        key = (tile * KEYS + slot).to(tl.int64)
        k = tl.load(
            k_head + key[:, None] * stride_kn, mask=(d < HEAD)[None, :] & (key < keys)[:, None], other=0.0
        )
        logits = base2_logits(k, q, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        mass = tl.exp2(tl.reshape(logits, [KEYS, HEADS, ROWS]) - lse[None, :, :])
        if (tile + 1) * KEYS > first or tile * KEYS < lowest or count < ROWS:
            at = key[:, None, None]
            mass = tl.where(real[None, None, :] & (at <= position) & (at >= lowest), mass, 0.0)
        column = tl.sum(mass, 2)
        # Every offset has come through the steps together as far as it is from the first one's start.
        ramp = tl.sum(mass * along, 2) - column * (slot + first_edge - STEP).to(tl.float32)[:, None]
        part = (((unit * HEADS + some[None, :]) * tiles + tile) * (STEPS + 1)) * (KEYS // LANES)
        part = part_ptr + part + lanes[:, None]
        for step in tl.static_range(1, STEPS):
            start = (slot + first_edge + (step - 1) * STEP).to(tl.float32)[:, None, None]
            weight = tl.maximum(along - start, 0.0)
            if step + 1 < STEPS:
                weight = tl.minimum(weight, STEP)
            later = tl.sum(mass * weight, 2)
            tl.store(part + step * (KEYS // LANES), _over_lanes(later, KEYS, LANES, HEADS))
            ramp -= later
        tl.store(part, _over_lanes(ramp, KEYS, LANES, HEADS))
        tl.store(part + STEPS * (KEYS // LANES), _over_lanes(column, KEYS, LANES, HEADS))
        if (tile + 1) * KEYS > first - local_offsets:
            mass = tl.where(key[:, None, None] <= position - local_offsets, mass, 0.0)
            column = tl.sum(mass, 2)
        place = column_ptr + (unit * HEADS + some[None, :]) * keys + key[:, None]
        if ADD:
            column += tl.load(place, mask=(key < keys)[:, None], other=0.0)
        tl.store(place, column, mask=(key < keys)[:, None])


@triton.jit
def _over_lanes(x, KEYS: tl.constexpr, LANES: tl.constexpr, HEADS: tl.constexpr):
    """Sums over LANES keys: [KEYS, HEADS] -> [KEYS / LANES, HEADS]."""
    return tl.sum(tl.reshape(x, [KEYS // LANES, LANES, HEADS]), 1)


@triton.jit(do_not_specialize=["nearest"])
def band_kernel(
    part_ptr, band_ptr, tiles, key_blocks, nearest,
    PARTS: tl.constexpr, RATIO: tl.constexpr, STEP: tl.constexpr, STEPS: tl.constexpr, LAST: tl.constexpr,
    N: tl.constexpr, ADD: tl.constexpr,
):  # fmt: skip
    """Band masses of N distances from recent_kernel's sums, PARTS of each; step s of tile t, which is RATIO steps wide,
    is step nearest + s - t * RATIO of all.

    Band D weighs an offset by how many rows of a query block it serves (method/bands.py): that rises from 0 to STEP
    along step D - 1, and falls again along step D + LAST - 1, LAST = block_q / STEP.
    """
    unit = tl.program_id(1).to(tl.int64)
    distance = tl.program_id(0) * N + tl.arange(0, N)
    slot = tl.arange(0, PARTS)
    place = band_ptr + unit * key_blocks + distance
    total = tl.zeros([N], dtype=tl.float32)
    if ADD:
        total += tl.load(place, mask=distance < key_blocks, other=0.0)
    unit_part = part_ptr + unit * tiles * (STEPS + 1) * PARTS + slot[None, :]
    for step in tl.static_range(STEPS):
        total += _sum_of_tile(unit_part, nearest + step - (distance - 1), step, tiles, STEPS, RATIO, PARTS)
        total -= _sum_of_tile(
            unit_part, nearest + step - (distance + LAST - 1), step, tiles, STEPS, RATIO, PARTS
        )
    # Tiles that lie wholly between the ramps.
    for behind in tl.static_range(LAST):
        mass = _sum_of_tile(unit_part, nearest - (distance + behind), STEPS, tiles, STEPS, RATIO, PARTS)
        total += STEP * mass
    tl.store(place, total, mask=distance < key_blocks)


@triton.jit
def _sum_of_tile(
    unit_part, back, which: tl.constexpr, tiles,
    STEPS: tl.constexpr, RATIO: tl.constexpr, PARTS: tl.constexpr,
):  # fmt: skip
    """One of the STEPS + 1 sums of the tile that lies ``back`` [N] steps from the first one; 0 where none does."""
    tile = back // RATIO
    meets = (back >= 0) & (back % RATIO == 0) & (tile < tiles)
    part = unit_part + ((tile * (STEPS + 1) + which) * PARTS)[:, None]
    return tl.sum(tl.load(part, mask=meets[:, None], other=0.0), 1)
