"""The device code of level maps: bands by block distance and their ranks, and what is read of any map."""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import NEVER, blocks_of


@triton.jit
def band_levels_kernel(
    bands_ptr, budgets_ptr, levels_ptr, key_blocks, BUDGETS: tl.constexpr, SOME: tl.constexpr, N: tl.constexpr
):
    """SOME bands of a unit: their ranks, found by counting the bands before each, and the budgets that end there."""
    unit = tl.program_id(1).to(tl.int64) * key_blocks
    at = tl.program_id(0) * SOME + tl.arange(0, SOME)
    own = tl.load(bands_ptr + unit + at, mask=at < key_blocks, other=0.0)
    rank = tl.zeros([SOME], dtype=tl.int32)
    for start in range(0, key_blocks, N):
        n = start + tl.arange(0, N)
        other = tl.load(bands_ptr + unit + n, mask=n < key_blocks, other=-1.0)
        nearer = (other[None, :] == own[:, None]) & (n[None, :] < at[:, None])
        rank += tl.sum(((other[None, :] > own[:, None]) | nearer).to(tl.int32), 1)
    level = tl.zeros([SOME], dtype=tl.int32)
    for budget in tl.static_range(BUDGETS):
        level += (rank >= tl.load(budgets_ptr + budget)).to(tl.int32)
    level = tl.where(level < BUDGETS, level, NEVER)
    tl.store(levels_ptr + unit + at, level.to(tl.uint8), mask=at < key_blocks)


@triton.jit
def slash_levels_kernel(
    band_levels_ptr, levels_ptr, first_key_ptr, heads, query_blocks, key_blocks, position, segment_keys,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, LOCAL_BLOCKS: tl.constexpr, FROM_LAST: tl.constexpr,
    N: tl.constexpr,
):  # fmt: skip
    """One query block: the level of the band that each KV block lies in, N blocks at a time up to the diagonal."""
    row = tl.program_id(0).to(tl.int64)
    unit = row // query_blocks
    query_block = (row % query_blocks).to(tl.int32)
    base, last, sink = blocks_of(
        query_block, first_key_ptr, unit // heads, position, segment_keys, BLOCK_Q, BLOCK_K
    )
    bands = band_levels_ptr + unit * key_blocks
    out = levels_ptr + row * key_blocks
    step = tl.arange(0, N)
    for start in range(0, last + 1, N):
        n = start + step
        distance = (last if FROM_LAST else base) - n
        if (start > sink) & (start + N <= base - LOCAL_BLOCKS):
            level = tl.load(bands + distance).to(tl.int32)
        else:
            level = tl.load(bands + distance, mask=(base - n > LOCAL_BLOCKS) & (n > sink), other=0)
            level = tl.where((n <= last) & (n >= sink), level.to(tl.int32), NEVER)
        tl.store(out + n, level.to(tl.uint8), mask=n < key_blocks)
    nothing = tl.full([N], NEVER, tl.uint8)
    for start in range((last // N + 1) * N, key_blocks, N):
        tl.store(out + start + step, nothing, mask=start + step < key_blocks)


@triton.jit(do_not_specialize=["body_blocks"])
def readers_kernel(
    levels_ptr, readers_ptr, query_blocks, body_blocks, key_blocks, position,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, DEPTH: tl.constexpr, CHUNK: tl.constexpr,
    ROWS: tl.constexpr, N: tl.constexpr,
):  # fmt: skip
    """N KV blocks and CHUNK query blocks of one map: add how many of these read each block, level by level."""
    unit = tl.program_id(2).to(tl.int64)
    n = tl.program_id(0) * N + tl.arange(0, N)
    # The query blocks before see none of these KV blocks.
    seen_from = tl.maximum((tl.program_id(0) * N * BLOCK_K - position) // BLOCK_Q, 0)
    begin = tl.maximum(tl.program_id(1) * CHUNK, seen_from // ROWS * ROWS)
    end = tl.minimum(tl.program_id(1) * CHUNK + CHUNK, body_blocks)
    counts = (tl.zeros([N], dtype=tl.int32),) * DEPTH
    for start in range(begin, end, ROWS):
        # A tile of rows would lie across lanes, and each of its sums would be a shuffle.
        for row in tl.static_range(ROWS):
            place = levels_ptr + (unit * query_blocks + start + row) * key_blocks + n
            inside = (n < key_blocks) & (start + row < end)
            counts = add_readers(counts, tl.load(place, mask=inside, other=NEVER).to(tl.int32), DEPTH)
    if begin < end:
        for level in tl.static_range(DEPTH):
            out = readers_ptr + (unit * DEPTH + level) * key_blocks + n
            tl.atomic_add(out, counts[level], mask=n < key_blocks, sem="relaxed")


@triton.jit
def add_readers(counts, level_of_block, DEPTH: tl.constexpr):
    """Add 1 to the counts [N] of the levels that read a query block's KV blocks."""
    added = ()
    for level in tl.static_range(DEPTH):
        # A kernel can not unpack.
        added = added + (counts[level] + (level_of_block <= level).to(tl.int32),)  # type: ignore[assignment]  # noqa: RUF005
    return added
