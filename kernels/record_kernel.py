"""The device code of what a record keeps: the in-prompt bound, and pictures of the probe with what budgets read.

Importing this module imports Triton, so only ``record_triton`` does, inside functions.
"""

from __future__ import annotations

import triton
import triton.language as tl

NEVER = tl.constexpr(255)


@triton.jit
def betting_kernel(
    x_ptr,
    bound_ptr,
    count,
    target,
    bet_cap,
    BISECTIONS: tl.constexpr,
    C: tl.constexpr,
):
    """One candidate's rows in drawn order: the mean at which the wealth no longer reaches e^target, by bisection."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, C)
    real = place < count
    x = tl.load(x_ptr + row * count + place, mask=real, other=0.0)
    before = tl.load(x_ptr + row * count + place - 1, mask=real & (place > 0), other=0.0)
    # From the rows before i only; v_0 is 1/4.
    mean = (0.5 + tl.cumsum(before, 0)) / (place + 1)
    deviation = tl.where(place > 0, before - mean, 0.0)
    variance = tl.maximum((0.25 + tl.cumsum(deviation * deviation, 0)) / (place + 1), 1e-12)
    bets = tl.where(real, tl.sqrt(2.0 * target / (count * variance)), 0.0)
    low = tl.sum(x * 0.0, 0)
    width = low + 1.0
    for _ in range(BISECTIONS):
        width = width * 0.5
        mu = low + width
        capped = tl.minimum(bets, bet_cap / mu)
        wealth = tl.max(tl.cumsum(tl.log(1.0 + capped * (x - mu)), 0), 0)
        low = tl.where(wealth >= target, mu, low)
    tl.store(bound_ptr + row, low)


@triton.jit
def picture_kernel(
    mass_ptr,
    rows_ptr,
    drawn_ptr,
    closed_ptr,
    slash_ptr,
    top_k_ptr,
    top_p_ptr,
    single_ptr,
    picture_ptr,
    masks_ptr,
    closed_stride,
    heads,
    count,
    drawn,
    query_blocks,
    key_blocks,
    columns,
    mask_columns,
    pool,
    mask_pool,
    position,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK_COLUMNS: tl.constexpr,
    LAST: tl.constexpr,
):
    """One drawn probe row: its block masses by maximum, and the smallest level of each family that reads a cell."""
    at = tl.program_id(0).to(tl.int64)
    unit, picture_row = at // drawn, at % drawn
    probe_row = tl.load(drawn_ptr + picture_row)
    row = tl.load(rows_ptr + unit * count + probe_row)

    column = tl.arange(0, COLUMNS)
    most = tl.zeros([COLUMNS], dtype=tl.float32)
    for part in range(pool):
        n = column * pool + part
        inside = (column < columns) & (n < key_blocks)
        most = tl.maximum(
            most, tl.load(mass_ptr + (unit * count + probe_row) * key_blocks + n, mask=inside, other=0.0)
        )
    tl.store(picture_ptr + at * columns + column, most.to(tl.float16), mask=column < columns)

    cell = tl.arange(0, MASK_COLUMNS)
    reach = (row + position) // BLOCK_K
    level_row = row // BLOCK_Q * key_blocks
    own = unit * query_blocks * key_blocks + level_row
    closed = tl.full([MASK_COLUMNS], LAST, tl.int32)
    slash, top_k, top_p = closed, closed, closed
    for part in range(mask_pool):
        n = cell * mask_pool + part
        inside = (cell < mask_columns) & (n < key_blocks) & (n <= reach)
        level = tl.load(closed_ptr + unit // heads * closed_stride + level_row + n, mask=inside, other=NEVER)
        closed = tl.minimum(closed, level.to(tl.int32))
        level = tl.load(slash_ptr + own + n, mask=inside, other=NEVER)
        # A block of which only single columns are read counts from their smallest level on.
        single = tl.load(single_ptr + unit * key_blocks + n, mask=inside, other=NEVER)
        slash = tl.minimum(slash, tl.minimum(level.to(tl.int32), single.to(tl.int32)))
        level = tl.load(top_k_ptr + own + n, mask=inside, other=NEVER)
        top_k = tl.minimum(top_k, level.to(tl.int32))
        level = tl.load(top_p_ptr + own + n, mask=inside, other=NEVER)
        top_p = tl.minimum(top_p, level.to(tl.int32))
    out = masks_ptr + (unit * 2 * drawn + picture_row) * mask_columns + cell
    tl.store(out, (closed | (slash << 4)).to(tl.uint8), mask=cell < mask_columns)
    tl.store(out + drawn * mask_columns, (top_k | (top_p << 4)).to(tl.uint8), mask=cell < mask_columns)
