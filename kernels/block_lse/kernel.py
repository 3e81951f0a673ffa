"""The device code of the block log-sum-exps: the keys of a program stand still, the rows that see them pass by.

Rows of one KV head, in order
of position, form tiles of ROWS; the rows that see a tile of keys are then those from some tile on. Positions and row
numbers are int32, addresses int64.

487 us on an H200 at 131,072 tokens and 32 heads, with ``lg2.approx`` and one fused multiply-add an element; 650
before. The time follows the number of instructions beside the products, not waiting: 376 without the maximum, 388
without exp2, 328 without either sum. A kernel with a producer warpgroup came to 450 for 365 lines and is not kept.
Rows are placed by counting the rows before each, without a sort.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import LN2, LOG2E, base2_logits, places_of, pointer_from


@triton.jit
def collect_rows_kernel(
    q_ptr, table_ptr, sample_ptr, query_ptr, position_ptr, row_ptr, first_tile_ptr, out_ptr,
    stride_qb, stride_qh, stride_qn, stride_qd,
    kv_heads, group, count, padded, key_blocks, key_tiles, shift,
    ROWS: tl.constexpr, SOME: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr, INDIRECT: tl.constexpr,
):  # fmt: skip
    """SOME rows of one KV head to their places by position: query, position and row of the output (-1 past the last).

    Also -inf for the KV blocks behind the tile of BLOCKS that holds a row's position, and, for a share of those tiles,
    the first tile of ROWS rows that sees them. shift: position of a row less its place in q.
    """
    if INDIRECT:
        q_ptr = pointer_from(table_ptr, 0, q_ptr)
    unit = tl.program_id(1).to(tl.int64)
    batch, kv_head = unit // kv_heads, unit % kv_heads
    rows = group * count
    sample_ptr += unit * rows
    at = tl.program_id(0) * SOME + tl.arange(0, SOME)
    real = at < rows
    # What fills up the last tile stands behind every key.
    position = tl.load(sample_ptr + at, mask=real, other=2147483647).to(tl.int32)
    place = unit * padded + tl.where(real, places_of(sample_ptr, position, at, rows), at)
    d = tl.arange(0, HEAD_PADDED)
    q = tl.load(
        q_ptr
        + batch * stride_qb
        + (kv_head * group + at // count)[:, None] * stride_qh
        + (position.to(tl.int64) - shift)[:, None] * stride_qn
        + d[None, :] * stride_qd,
        mask=real[:, None] & (d < HEAD)[None, :],
        other=0.0,
    )
    tl.store(query_ptr + place[:, None] * HEAD + d[None, :], q, mask=(d < HEAD)[None, :])
    tl.store(position_ptr + place, position)
    row = unit * rows + at
    tl.store(row_ptr + place, tl.where(real, row, -1).to(tl.int32))

    others = tl.arange(0, 256)
    behind = (position // (BLOCKS * BLOCK) + 1) * BLOCKS
    nothing = tl.full([SOME, 256], -float("inf"), tl.float32)
    for start in range(tl.min(behind, 0) // 256 * 256, key_blocks, 256):
        block = start + others
        hidden = real[:, None] & (block[None, :] >= behind[:, None]) & (block < key_blocks)[None, :]
        tl.store(out_ptr + row[:, None] * key_blocks + block[None, :], nothing, mask=hidden)

    for first in range(tl.program_id(0) * SOME, key_tiles, tl.num_programs(0) * SOME):
        key_tile = first + tl.arange(0, SOME)
        blind = tl.zeros([SOME], dtype=tl.int32)
        for start in range(0, rows, 256):
            other = tl.load(sample_ptr + start + others, mask=start + others < rows, other=2147483647)
            blind += tl.sum((other[None, :] < (key_tile * (BLOCKS * BLOCK))[:, None]).to(tl.int32), 1)
        tl.store(first_tile_ptr + unit * key_tiles + key_tile, blind // ROWS, mask=key_tile < key_tiles)


@triton.jit
def _log2(x, UPCAST: tl.constexpr):
    """log2 of sums of 64 weights of at most 1, where the instruction is as exact as tl.log2, which takes twenty."""
    if UPCAST:
        return tl.log2(x)
    return tl.inline_asm_elementwise(
        "lg2.approx.ftz.f32 $0, $1;", "=f,f", [x], dtype=tl.float32, is_pure=True, pack=1
    )


@triton.jit
def block_lse_kernel(
    k_ptr, table_ptr, query_ptr, position_ptr, row_ptr, first_tile_ptr, first_key_ptr, out_ptr,
    stride_kb, stride_kh, stride_kn, stride_kd,
    kv_heads, units, row_tiles, keys, key_blocks, key_tiles, scale, softcap,
    ROWS: tl.constexpr, BLOCK: tl.constexpr, BLOCKS: tl.constexpr, HEAD: tl.constexpr,
    HEAD_PADDED: tl.constexpr, KEY_START: tl.constexpr, SOFTCAP: tl.constexpr, UPCAST: tl.constexpr,
    PRECISION: tl.constexpr, INDIRECT: tl.constexpr, STAGES: tl.constexpr,
):  # fmt: skip
    """BLOCKS KV blocks of one KV head x the tiles of rows that see them (collect_rows_kernel). scale > 0.

    The keys that most rows see come first, so the longest programs start first.
    """
    if INDIRECT:
        k_ptr = pointer_from(table_ptr, 1, k_ptr)
    unit = (tl.program_id(0) % units).to(tl.int64)
    key_tile = tl.program_id(0) // units
    batch, kv_head = unit // kv_heads, unit % kv_heads
    d = tl.arange(0, HEAD_PADDED)
    key = key_tile.to(tl.int64) * (BLOCKS * BLOCK) + tl.arange(0, BLOCKS * BLOCK)
    k = tl.load(
        k_ptr + batch * stride_kb + kv_head * stride_kh + d[:, None] * stride_kd + key[None, :] * stride_kn,
        mask=(d < HEAD)[:, None] & (key < keys)[None, :],
        other=0.0,
    )
    blocks = key_tile * BLOCKS + tl.arange(0, BLOCKS)
    slot = tl.arange(0, ROWS)
    query_ptr += unit * row_tiles * ROWS * HEAD
    position_ptr += unit * row_tiles * ROWS
    row_ptr += unit * row_tiles * ROWS
    # Rows from this position on see the whole tile; none does where it holds padding or ends past the keys.
    free = key_tile * (BLOCKS * BLOCK) + (BLOCKS * BLOCK - 1)
    lowest = tl.zeros([], dtype=tl.int64)
    if KEY_START:
        lowest = tl.load(first_key_ptr + batch)
        if lowest > key_tile * (BLOCKS * BLOCK):
            free = keys
    tile = tl.load(first_tile_ptr + unit * key_tiles + key_tile)
    least = tl.load(position_ptr + tile * ROWS, mask=tile < row_tiles, other=free)
    while least < free:
        at = tile * ROWS + slot
        q = tl.load(query_ptr + at[:, None] * HEAD + d[None, :], mask=(d < HEAD)[None, :], other=0.0)
        logits = base2_logits(q, k, scale, softcap, SOFTCAP, UPCAST, PRECISION)
        position = tl.load(position_ptr + at)
        seen = (key[None, :] <= position[:, None]) & (key >= lowest)[None, :]
        logits = tl.reshape(tl.where(seen, logits, -float("inf")), [ROWS, BLOCKS, BLOCK])
        top = tl.max(logits, 2)
        top = tl.where(top == -float("inf"), 0.0, top)
        total = tl.sum(tl.exp2(logits - top[:, :, None]), 2)
        row = tl.load(row_ptr + at).to(tl.int64)
        tl.store(
            out_ptr + row[:, None] * key_blocks + blocks[None, :],
            (top + _log2(total, UPCAST)) * LN2,
            mask=(row >= 0)[:, None] & (blocks < key_blocks)[None, :],
        )
        tile += 1
        least = tl.load(position_ptr + tile * ROWS, mask=tile < row_tiles, other=free)
    for later in tl.range(tile, row_tiles, num_stages=STAGES):
        at = later * ROWS + slot
        q = tl.load(query_ptr + at[:, None] * HEAD + d[None, :], mask=(d < HEAD)[None, :], other=0.0)
        if SOFTCAP:
            logits = base2_logits(q, k, scale, softcap, SOFTCAP, UPCAST, PRECISION)
            factor = 1.0
        else:
            # One multiplication and one subtraction a logit become one instruction.
            logits = base2_logits(q, k, 1.0 / LOG2E, softcap, SOFTCAP, UPCAST, PRECISION)
            factor = scale * LOG2E
        logits = tl.reshape(logits, [ROWS, BLOCKS, BLOCK])
        top = tl.max(logits, 2) * factor
        total = tl.sum(tl.exp2(logits * factor - top[:, :, None]), 2)
        row = tl.load(row_ptr + at).to(tl.int64)
        tl.store(
            out_ptr + row[:, None] * key_blocks + blocks[None, :],
            (top + _log2(total, UPCAST)) * LN2,
            mask=(row >= 0)[:, None],
        )
