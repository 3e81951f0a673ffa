"""The device code of builders, scoring and lowering: level maps, their counts, masses under them, row plans.

Importing this module imports Triton, so only ``index_triton`` does, inside functions. A level map is uint8
[B, H, M, N]: the smallest budget level of a family that reads the KV block, 255 for none. Query block m of a segment
covers the key positions ``position + m * block_q`` and on, clipped to the segment's end.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.probe_kernel import base2_logits, pointer_from

NEVER = tl.constexpr(255)


@triton.jit
def score_levels_kernel(
    scores_ptr,
    top_k_ptr,
    top_p_ptr,
    top_k_count_ptr,
    top_p_count_ptr,
    budgets_ptr,
    shares_ptr,
    first_key_ptr,
    heads,
    query_blocks,
    key_blocks,
    position,
    segment_keys,
    scale,
    softcap,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LOCAL_BLOCKS: tl.constexpr,
    BUDGETS: tl.constexpr,
    SHARES: tl.constexpr,
    N: tl.constexpr,
    BINS: tl.constexpr,
    SOFTCAP: tl.constexpr,
):
    """One query block: bin its scores, place each budget at a bin's edge, give every block its bin's level."""
    row = tl.program_id(0).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    batch = row // query_blocks // heads
    first = position + query_block * BLOCK_Q
    base = first // BLOCK_K
    last = (tl.minimum(first + BLOCK_Q, segment_keys) - 1) // BLOCK_K
    sink = (tl.load(first_key_ptr + batch) // BLOCK_K).to(tl.int32)
    n = tl.arange(0, N)
    causal = (n <= last) & (n >= sink)
    forced = causal & ((n == sink) | (n >= base - LOCAL_BLOCKS))
    free = causal & (n != sink) & (n < base - LOCAL_BLOCKS)
    score = tl.load(scores_ptr + row * key_blocks + n, mask=free, other=0.0).to(tl.float32) * scale
    if SOFTCAP:
        score = softcap * (2.0 * tl.sigmoid(2.0 * score / softcap) - 1.0)
    high = tl.max(tl.where(free, score, -float("inf")), 0)
    low = tl.min(tl.where(free, score, float("inf")), 0)
    some = high >= low
    width = tl.maximum(tl.where(some, high - low, 0.0), 1e-20) / BINS
    place = (tl.where(free, score - low, 0.0) / width).to(tl.int32)
    place = tl.where(free, tl.minimum(tl.maximum(place, 0), BINS - 1), 0)

    edge = tl.arange(0, BINS)
    count = tl.histogram(place, BINS, mask=free)
    up_to = tl.cumsum(count, 0, reverse=True)
    weight = count.to(tl.float32) * tl.exp((edge + 0.5 - BINS) * width)
    better = tl.cumsum(weight, 0, reverse=True) - weight
    better = better / tl.maximum(tl.sum(weight, 0), 1e-30)
    taken = tl.sum(forced.to(tl.int32), 0)
    # Four counts of 16 bits in one sum: every sum is a wait of the whole program, and they are most of its time.
    top_k = tl.zeros([BINS], dtype=tl.int32)
    held = tl.zeros([BINS], dtype=tl.int64)
    for level in tl.static_range(BUDGETS):
        over = up_to > tl.load(budgets_ptr + level) - taken
        top_k += over.to(tl.int32)
        held += tl.where(over, 0, count).to(tl.int64) << (16 * (level % 4))
        if level % 4 == 3 or level == BUDGETS - 1:
            total = tl.sum(held, 0)
            for one in tl.static_range(level % 4 + 1):
                place_of = top_k_count_ptr + row * BUDGETS + (level - level % 4 + one)
                tl.store(place_of, taken + ((total >> (16 * one)) & 65535).to(tl.int32))
            held = tl.zeros([BINS], dtype=tl.int64)
    top_p = tl.zeros([BINS], dtype=tl.int32)
    for level in tl.static_range(SHARES):
        over = better >= tl.load(shares_ptr + level)
        top_p += over.to(tl.int32)
        held += tl.where(over, 0, count).to(tl.int64) << (16 * (level % 4))
        if level % 4 == 3 or level == SHARES - 1:
            total = tl.sum(held, 0)
            for one in tl.static_range(level % 4 + 1):
                place_of = top_p_count_ptr + row * SHARES + (level - level % 4 + one)
                tl.store(place_of, taken + ((total >> (16 * one)) & 65535).to(tl.int32))
            held = tl.zeros([BINS], dtype=tl.int64)
    top_k = tl.where(top_k == BUDGETS, NEVER, top_k)
    top_p = tl.where(top_p == SHARES, NEVER, top_p)
    found = tl.gather(top_k + top_p * 256, place, 0)
    found = tl.where(forced, 0, tl.where(free, found, NEVER * 257))
    out = row * key_blocks + n
    tl.store(top_k_ptr + out, (found & 255).to(tl.uint8), mask=n < key_blocks)
    tl.store(top_p_ptr + out, (found >> 8).to(tl.uint8), mask=n < key_blocks)


@triton.jit
def slash_levels_kernel(
    band_levels_ptr,
    levels_ptr,
    first_key_ptr,
    heads,
    query_blocks,
    key_blocks,
    position,
    segment_keys,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LOCAL_BLOCKS: tl.constexpr,
    N: tl.constexpr,
):
    """One query block: the level of the band that each KV block lies in."""
    row = tl.program_id(0).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    unit = row // query_blocks
    first = position + query_block * BLOCK_Q
    base = first // BLOCK_K
    last = (tl.minimum(first + BLOCK_Q, segment_keys) - 1) // BLOCK_K
    sink = (tl.load(first_key_ptr + unit // heads) // BLOCK_K).to(tl.int32)
    n = tl.program_id(1) * N + tl.arange(0, N)
    causal = (n <= last) & (n >= sink)
    level = tl.load(
        band_levels_ptr + unit * key_blocks + tl.maximum(base - n, 0),
        mask=causal & (n < key_blocks),
        other=NEVER,
    ).to(tl.int32)
    level = tl.where(causal & ((n == sink) | (n >= base - LOCAL_BLOCKS)), 0, level)
    tl.store(levels_ptr + row * key_blocks + n, level.to(tl.uint8), mask=n < key_blocks)


@triton.jit
def count_kernel(
    levels_ptr,
    counts_ptr,
    stride_unit,
    body_blocks,
    key_blocks,
    levels,
    LEVELS: tl.constexpr,
    N: tl.constexpr,
):
    """Query blocks of the body that read each KV block at each level: one unit x N KV blocks."""
    unit = tl.program_id(1).to(tl.int64)
    n = tl.program_id(0) * N + tl.arange(0, N)
    level = tl.arange(0, LEVELS)
    total = tl.zeros([LEVELS, N], dtype=tl.int32)
    m = tl.arange(0, 64)
    for start in range(0, body_blocks, 64):
        at = start + m
        tile = tl.load(
            levels_ptr + unit * stride_unit + at.to(tl.int64)[:, None] * key_blocks + n[None, :],
            mask=(at < body_blocks)[:, None] & (n < key_blocks)[None, :],
            other=NEVER,
        ).to(tl.int64)
        # Eight counters of a byte each in one sum: 64 rows overflow none.
        lanes = tl.sum(tl.where(tile < 8, 1 << (8 * tl.minimum(tile, 7)), 0), 0)
        total += ((lanes[None, :] >> (8 * level[:, None])) & 255).to(tl.int32)
    total = tl.cumsum(total, 0)
    out = counts_ptr + (unit * levels + level[:, None]) * key_blocks + n[None, :]
    tl.store(out, total, mask=(level < levels)[:, None] & (n < key_blocks)[None, :])


@triton.jit
def cover_rows_kernel(
    mass_ptr,
    query_block_ptr,
    levels_ptr,
    out_ptr,
    stride_batch,
    stride_head,
    heads,
    count,
    key_blocks,
    levels,
    LEVELS: tl.constexpr,
    N: tl.constexpr,
):
    """One probe row: its mass in the blocks that each level reads."""
    row = tl.program_id(0).to(tl.int64)
    unit = row // count
    n = tl.arange(0, N)
    mass = tl.load(mass_ptr + row * key_blocks + n, mask=n < key_blocks, other=0.0)
    query_block = tl.load(query_block_ptr + row)
    found = tl.load(
        levels_ptr
        + (unit // heads) * stride_batch
        + (unit % heads) * stride_head
        + query_block * key_blocks
        + n,
        mask=n < key_blocks,
        other=NEVER,
    ).to(tl.int32)
    level = tl.arange(0, LEVELS)
    read = tl.sum(tl.where(found[None, :] <= level[:, None], mass[None, :], 0.0), 1)
    tl.store(out_ptr + row * levels + level, read, mask=level < levels)


@triton.jit
def cover_columns_kernel(
    q_ptr,
    k_ptr,
    table_ptr,
    position_ptr,
    lse_ptr,
    mass_ptr,
    columns_ptr,
    column_counts_ptr,
    levels_ptr,
    out_ptr,
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
    count,
    width,
    chunk,
    query_blocks,
    key_blocks,
    levels,
    shift,
    segment_position,
    exact_end,
    pooled_end,
    boundary,
    scale,
    softcap,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    ROWS: tl.constexpr,
    COLUMNS: tl.constexpr,
    LEVELS: tl.constexpr,
    HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr,
    POOLED: tl.constexpr,
    SOFTCAP: tl.constexpr,
    UPCAST: tl.constexpr,
    PRECISION: tl.constexpr,
    INDIRECT: tl.constexpr,
):
    """ROWS probe rows of a head x a part of its columns: mass of each level's columns outside the row's blocks."""
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
        k_ptr = pointer_from(table_ptr, 1, k_ptr)
    unit = tl.program_id(1).to(tl.int64)
    batch, head = unit // heads, unit % heads
    at = tl.program_id(0) * ROWS + tl.arange(0, ROWS)
    real = at < count
    position = tl.load(position_ptr + unit * count + at, mask=real, other=0)
    lse = tl.load(lse_ptr + unit * count + at, mask=real, other=float("inf")) * 1.4426950408889634
    d = tl.arange(0, HEAD_PADDED)
    slot = tl.arange(0, COLUMNS)
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + head * stride_qh
        + (position - shift)[:, None] * stride_qn
        + d[None, :] * stride_qd,
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    )
    k_head = k_ptr + batch * stride_kb + (head // group) * stride_kh + d[:, None] * stride_kd
    lowest = tl.load(first_key_ptr + batch)
    own = (position - segment_position) // BLOCK_Q
    level_row = levels_ptr + (unit * query_blocks + own) * key_blocks
    level = tl.arange(0, LEVELS)
    total = tl.zeros([ROWS, LEVELS], dtype=tl.float32)
    begin = tl.program_id(2) * chunk
    for start in range(begin, tl.minimum(begin + chunk, width), COLUMNS):
        rank = start + slot
        key = tl.load(columns_ptr + unit * width + rank, mask=rank < width, other=0)
        part = tl.load(
            k_head + key[None, :] * stride_kn, mask=(d < HEAD)[:, None] & (rank < width)[None, :], other=0.0
        )
        logits = base2_logits(q, part, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        mass = tl.exp2(logits - lse[:, None])
        home = key // BLOCK_K
        seen = (
            real[:, None] & (key[None, :] <= position[:, None]) & ((key >= lowest) & (rank < width))[None, :]
        )
        if POOLED:
            # Routing and boundary rows of a pooled probe know blocks only: a column has its block's mean.
            pooled = ((at >= exact_end) & (at < pooled_end)) | (at >= boundary)
            block = tl.load(
                mass_ptr + (unit * count + at)[:, None] * key_blocks + home[None, :], mask=seen, other=0.0
            )
            mass = tl.where(pooled[:, None], block / BLOCK_K, mass)
        mass = tl.where(seen, mass, 0.0)
        read_from = tl.load(level_row[:, None] + home[None, :], mask=seen, other=0).to(tl.int32)
        # Read singly by the levels below the block's own that hold the column.
        for one in tl.static_range(LEVELS):
            size = tl.load(column_counts_ptr + one, mask=one < levels, other=0)
            if start < size:
                single = (read_from > one) & (rank < size)[None, :]
                part_sum = tl.sum(tl.where(single, mass, 0.0), 1)
                total += tl.where((level == one)[None, :], part_sum[:, None], 0.0)
    part_of_row = (tl.program_id(2) * tl.num_programs(1) + unit) * count + at
    out = out_ptr + part_of_row[:, None] * levels + level[None, :]
    tl.store(out, total, mask=real[:, None] & (level < levels)[None, :])


@triton.jit
def lower_kernel(
    family_ptr,
    level_ptr,
    closed_ptr,
    slash_ptr,
    top_k_ptr,
    top_p_ptr,
    columns_ptr,
    column_counts_ptr,
    first_key_ptr,
    blocks_ptr,
    block_count_ptr,
    singles_ptr,
    single_count_ptr,
    dense_ptr,
    closed_stride,
    heads,
    query_blocks,
    body_blocks,
    key_blocks,
    capacity,
    width,
    position,
    segment_keys,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    N: tl.constexpr,
    COLUMNS: tl.constexpr,
):
    """One row of the plan: the chosen family's level row, cut at the chosen level, as ascending lists."""
    row = tl.program_id(0).to(tl.int64)
    query_block = row % query_blocks
    unit = row // query_blocks
    batch = unit // heads
    family = tl.load(family_ptr + unit)
    level = tl.load(level_ptr + unit)
    n = tl.arange(0, N)
    inside = n < key_blocks
    dense = (family < 0) | (query_block >= body_blocks)
    if family == 0:
        place = closed_ptr + batch * closed_stride + query_block * key_blocks
    elif family == 1:
        place = slash_ptr + row * key_blocks
    elif family == 2:
        place = top_k_ptr + row * key_blocks
    else:
        place = top_p_ptr + row * key_blocks
    kept = (tl.load(place + n, mask=inside & (dense == 0), other=NEVER).to(tl.int32) <= level) & (dense == 0)
    rank = tl.cumsum(kept.to(tl.int32), 0)
    count = tl.sum(kept.to(tl.int32), 0)
    dense = dense | (count > capacity)
    tl.store(blocks_ptr + row * capacity + rank - 1, n, mask=kept & (dense == 0))

    single_count = 0
    if family == 1:
        last = tl.minimum(position + (query_block + 1) * BLOCK_Q, segment_keys) - 1
        lowest = tl.load(first_key_ptr + batch)
        slot = tl.arange(0, COLUMNS)
        held = tl.where(dense, 0, width)
        for start in range(0, held, COLUMNS):
            at = start + slot
            # Columns that the level does not hold come last, past every key.
            key = tl.load(columns_ptr + unit * width + at, mask=at < width, other=segment_keys)
            readable = (key <= last) & (key >= lowest) & (key < segment_keys)
            read_from = tl.load(place + key // BLOCK_K, mask=readable, other=0).to(tl.int32)
            single = readable & (read_from > level)
            before = tl.cumsum(single.to(tl.int32), 0)
            tl.store(singles_ptr + row * width + single_count + before - 1, key.to(tl.int32), mask=single)
            single_count += tl.sum(single.to(tl.int32), 0)
    tl.store(block_count_ptr + row, tl.where(dense, 0, count))
    tl.store(single_count_ptr + row, tl.where(dense, 0, single_count))
    tl.store(dense_ptr + row, dense.to(tl.uint8))
