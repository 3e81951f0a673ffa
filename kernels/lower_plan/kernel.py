"""The device code of step 6: rows of the plan from level maps, and the share of the causal area that they keep.

Level maps as in ``level_maps``.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import blocks_of, of_head

LANES = tl.constexpr(32)


@triton.jit
def ranks(kept):
    """Places from 1 on of what is kept, bool [of a lane, lanes] in the order of lanes, and how many there are."""
    kept = kept.to(tl.int32)
    of_lane = tl.sum(kept, 0)
    before = tl.cumsum(of_lane, 0) - of_lane
    return tl.cumsum(kept, 0) + before[None, :], tl.sum(of_lane, 0)


@triton.jit(do_not_specialize=["body_blocks"])
def lower_kernel(
    choice_ptr, table_ptr, maps, columns_ptr, first_key_ptr, blocks_ptr, block_count_ptr, singles_ptr,
    single_count_ptr, dense_ptr,
    heads, query_blocks, body_blocks, key_blocks, capacity, width, position, segment_keys,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STRIDES: tl.constexpr, COLUMNS_OF: tl.constexpr,
    OF_LANE: tl.constexpr,
):  # fmt: skip
    """One row of the plan: the chosen family's level row, cut at the chosen level, as ascending lists."""
    row = tl.program_id(0).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    unit = row // query_blocks
    batch = unit // heads
    choice = tl.load(choice_ptr + unit)
    family = tl.load(table_ptr + 2 * choice)
    level = tl.load(table_ptr + 2 * choice + 1)
    _, last, _ = blocks_of(query_block, first_key_ptr, batch, position, segment_keys, BLOCK_Q, BLOCK_K)
    dense = (family < 0) | (query_block >= body_blocks)
    levels = of_head(maps, STRIDES, family, batch, unit % heads, query_blocks * key_blocks)
    levels += query_block * key_blocks
    # Consecutive elements in a lane: ranks are then mostly a lane's own sums.
    step = tl.arange(0, LANES)[None, :] * OF_LANE + tl.arange(0, OF_LANE)[:, None]
    PIECE: tl.constexpr = LANES * OF_LANE
    count = 0
    for start in range(0, tl.where(dense, 0, last + 1), PIECE):
        n = start + step
        kept = tl.load(levels + n, mask=n < key_blocks, other=255).to(tl.int32) <= level
        rank, some = ranks(kept)
        rank += count
        tl.store(blocks_ptr + row * capacity + (rank - 1), n, mask=kept & (rank <= capacity))
        count += some
    dense = dense | (count > capacity)

    single_count = 0
    if (family == COLUMNS_OF) & (dense == 0):
        # Keys are compared as they are kept, times 8.
        lowest = tl.load(first_key_ptr + batch).to(tl.int32) * 8
        end = tl.minimum(position + (query_block + 1) * BLOCK_Q, segment_keys) * 8
        start = 0
        more = width > 0
        while more:
            at = start + step
            column = tl.load(columns_ptr + unit * width + at, mask=at < width, other=0x7FFFFFFF)
            wanted = (column < end) & (column >= lowest) & ((column & 7) <= level)
            home = column.to(tl.uint32) // (8 * BLOCK_K)
            read_from = tl.load(levels + home, mask=wanted, other=0).to(tl.int32)
            single = read_from > level
            rank, some = ranks(single)
            tl.store(singles_ptr + row * width + single_count + (rank - 1), column >> 3, mask=single)
            single_count += some
            start += PIECE
            # Columns ascend.
            more = (start < width) & (tl.max(tl.max(column, 0), 0) < end)
    tl.store(block_count_ptr + row, tl.where(dense, 0, count))
    tl.store(single_count_ptr + row, single_count)
    tl.store(dense_ptr + row, dense.to(tl.uint8))


@triton.jit
def pairs_from(key, first, last):
    """(query, key) pairs of rows first .. last and the keys from ``key`` on that they see."""
    until, before = tl.maximum(last - key + 1, 0), tl.maximum(first - key, 0)
    return (until * (until + 1) - before * (before + 1)) // 2


@triton.jit
def density_kernel(
    block_count_ptr, single_count_ptr, dense_ptr, first_key_ptr, out_ptr,
    heads, query_blocks, position, segment_keys,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """One head: kept share of the causal area, from the counts of its rows. See execute.head_density."""
    unit = tl.program_id(0).to(tl.int64)
    start = tl.load(first_key_ptr + unit // heads)
    kept = tl.zeros([N], dtype=tl.int64)
    all_pairs = tl.zeros([N], dtype=tl.int64)
    for begin in range(0, query_blocks, N):
        m = begin + tl.arange(0, N)
        real = m < query_blocks
        first = position + m.to(tl.int64) * BLOCK_Q
        last = tl.minimum(first + BLOCK_Q, segment_keys) - 1
        edge = first // BLOCK_K
        diagonal = tl.maximum(last // BLOCK_K - tl.maximum(edge, start // BLOCK_K) + 1, 0)
        inside = pairs_from(tl.maximum(edge * BLOCK_K, start), first, last)
        # The lowered rows always list the sink block, whose keys before the first real one are hidden.
        hidden = tl.where(start // BLOCK_K < edge, start % BLOCK_K, 0)
        blocks = tl.load(block_count_ptr + unit * query_blocks + m, mask=real, other=0).to(tl.int64)
        singles = tl.load(single_count_ptr + unit * query_blocks + m, mask=real, other=0).to(tl.int64)
        dense = tl.load(dense_ptr + unit * query_blocks + m, mask=real, other=0)
        before = (blocks - diagonal) * BLOCK_K - hidden + singles
        everything = pairs_from(start, first, last)
        read = tl.where(dense != 0, everything, before * (last - first + 1) + inside)
        kept += tl.where(real, read, 0)
        all_pairs += tl.where(real, everything, 0)
    total = tl.maximum(tl.sum(all_pairs, 0), 1)
    tl.store(out_ptr + unit, tl.sum(kept, 0).to(tl.float64) / total.to(tl.float64))
