"""The device code of the pictures of a probe, with what budgets read."""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import NEVER, of_head


@triton.jit
def single_kernel(
    columns_ptr, counts_ptr, single_ptr, width, key_blocks, BLOCK_K: tl.constexpr, LEVELS: tl.constexpr
):
    """One unit: the smallest level that reads a column of each KV block singly.

    Columns come best first, and levels are written from the dearest to the cheapest, so that the cheapest stays.
    """
    unit = tl.program_id(0).to(tl.int64)
    some = tl.arange(0, 1024)
    own = single_ptr + unit * key_blocks
    for start in range(0, key_blocks, 1024):
        tl.store(own + start + some, tl.full([1024], 255, tl.uint8), mask=start + some < key_blocks)
    for back in tl.static_range(LEVELS):
        tl.debug_barrier()
        first = tl.zeros([], tl.int32)
        if back < LEVELS - 1:
            first = tl.load(counts_ptr + (LEVELS - 2 - back))
        end = tl.load(counts_ptr + (LEVELS - 1 - back))
        value = tl.full([1024], LEVELS - 1 - back, tl.uint8)
        for start in range(first, end, 1024):
            rank = start + some
            column = tl.load(columns_ptr + unit * width + rank, mask=rank < end, other=0)
            tl.store(own + column // BLOCK_K, value, mask=rank < end)


@triton.jit(do_not_specialize=["pool", "mask_pool"])
def picture_kernel(
    mass_ptr, rows_ptr, drawn_ptr, maps, single_ptr, picture_ptr, masks_ptr, positions_ptr,
    heads, count, drawn, query_blocks, key_blocks, columns, mask_columns, position, pool, mask_pool,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, COLUMNS: tl.constexpr, MASK_COLUMNS: tl.constexpr,
    PARTS: tl.constexpr, MASK_PARTS: tl.constexpr, LAST: tl.constexpr, STRIDES: tl.constexpr,
    COLUMNS_OF: tl.constexpr,
):  # fmt: skip
    """One drawn probe row: its position, its block masses by maximum, and the smallest level of each family by cell."""
    at = tl.program_id(0).to(tl.int64)
    unit, picture_row = at // drawn, at % drawn
    probe_row = tl.load(drawn_ptr + picture_row)
    row = tl.load(rows_ptr + unit * count + probe_row)
    tl.store(positions_ptr + at, (row + position).to(tl.int32))
    reach = (row + position) // BLOCK_K

    # Blocks of a column or cell lie side by side: some of them at once.
    part = tl.arange(0, PARTS)[None, :]
    column = tl.arange(0, COLUMNS)
    own = mass_ptr + (unit * count + probe_row) * key_blocks
    most = tl.zeros([COLUMNS], dtype=tl.float32)
    for start in range(0, pool, PARTS):
        # Nothing beyond the diagonal holds any mass.
        n = column[:, None] * pool + (start + part)
        inside = (n <= reach) & (start + part < pool)
        most = tl.maximum(most, tl.max(tl.load(own + n, mask=inside, other=0.0), 1))
    tl.store(picture_ptr + at * columns + column, most.to(tl.float16), mask=column < columns)

    cell = tl.arange(0, MASK_COLUMNS)
    part = tl.arange(0, MASK_PARTS)[None, :]
    out = masks_ptr + (unit * ((len(maps) + 1) // 2) * drawn + picture_row) * mask_columns + cell
    both = tl.zeros([MASK_COLUMNS], tl.int32)
    for family in tl.static_range(len(maps)):
        levels = of_head(maps, STRIDES, family, unit // heads, unit % heads, query_blocks * key_blocks)
        levels += row // BLOCK_Q * key_blocks
        least = tl.full([MASK_COLUMNS], LAST, tl.int32)
        for start in range(0, mask_pool, MASK_PARTS):
            n = cell[:, None] * mask_pool + (start + part)
            inside = (n <= reach) & (start + part < mask_pool)
            level = tl.load(levels + n, mask=inside, other=NEVER)
            if family == COLUMNS_OF:
                # A block of which only single columns are read counts from their smallest level on.
                single = tl.load(single_ptr + unit * key_blocks + n, mask=inside, other=NEVER)
                level = tl.minimum(level, single)
            least = tl.minimum(least, tl.min(level.to(tl.int32), 1))
        # Two families a byte; beside the last of an odd number stands LAST.
        both = (both & 15) | (least << 4) if family % 2 else least | (LAST << 4)
        if (family % 2 == 1) | (family + 1 == len(maps)):
            tl.store(out, both.to(tl.uint8), mask=cell < mask_columns)
            out += drawn * mask_columns
