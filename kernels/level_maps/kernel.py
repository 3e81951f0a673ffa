"""The device code of level maps in closed form: a window of blocks, bands by block distance and their ranks.

Importing this module imports Triton, so only the launcher does, inside functions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import NEVER, blocks_of


@triton.jit
def closed_levels_kernel(
    budgets_ptr,
    levels_ptr,
    first_key_ptr,
    budgets,
    query_blocks,
    key_blocks,
    position,
    segment_keys,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    LOCAL_BLOCKS: tl.constexpr,
    N: tl.constexpr,
):
    """One query block: the smallest window, in blocks up to the diagonal, that each KV block lies in."""
    row = tl.program_id(0).to(tl.int64)
    query_block = (row % query_blocks).to(tl.int32)
    base, last, sink = blocks_of(
        query_block, first_key_ptr, row // query_blocks, position, segment_keys, BLOCK_Q, BLOCK_K
    )
    n = tl.program_id(1) * N + tl.arange(0, N)
    level = tl.zeros([N], dtype=tl.int32)
    for budget in range(budgets):
        level += (last - n >= tl.load(budgets_ptr + budget)).to(tl.int32)
    level = tl.where(level == budgets, NEVER, level)
    level = tl.where((n == sink) | (n >= base - LOCAL_BLOCKS), 0, level)
    level = tl.where((n <= last) & (n >= sink), level, NEVER)
    tl.store(levels_ptr + row * key_blocks + n, level.to(tl.uint8), mask=n < key_blocks)


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
        distance = base - n
        if (start > sink) & (start + N <= base - LOCAL_BLOCKS):
            level = tl.load(bands + distance).to(tl.int32)
        else:
            level = tl.load(bands + distance, mask=(distance > LOCAL_BLOCKS) & (n > sink), other=0)
            level = tl.where((n <= last) & (n >= sink), level.to(tl.int32), NEVER)
        tl.store(out + n, level.to(tl.uint8), mask=n < key_blocks)
    nothing = tl.full([N], NEVER, tl.uint8)
    for start in range((last // N + 1) * N, key_blocks, N):
        tl.store(out + start + step, nothing, mask=start + step < key_blocks)
