"""The device code of level maps in closed form: a window of blocks, bands by block distance.

Importing this module imports Triton, so only ``index_triton`` does, inside functions. A level map is uint8
[B, H, M, N]: the smallest budget level of a family that reads the KV block, 255 for none. Query block m of a segment
covers the key positions ``position + m * block_q`` and on, clipped to the segment's end.
"""

from __future__ import annotations

import triton
import triton.language as tl

NEVER = tl.constexpr(255)


@triton.jit
def blocks_of(
    query_block, first_key_ptr, batch, position, segment_keys, BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr
):
    """KV blocks of a query block's first row, of its last row, and of the prompt's first real key."""
    first = position + query_block * BLOCK_Q
    last = (tl.minimum(first + BLOCK_Q, segment_keys) - 1) // BLOCK_K
    sink = (tl.load(first_key_ptr + batch) // BLOCK_K).to(tl.int32)
    return first // BLOCK_K, last, sink


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
