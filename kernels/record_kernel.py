"""The device code of what a record keeps: the in-prompt bound, and pictures of the probe with what budgets read.

Importing this module imports Triton, so only ``record_triton`` does, inside functions.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.map_kernel import NEVER


@triton.jit
def betting_bounds(
    x, before, place, count, scratch_ptr, target, bet_cap, BISECTIONS: tl.constexpr, BITS: tl.constexpr
):
    """Lower bounds float64 [S] of the means of S candidates: the mean at which the wealth no longer reaches e^target.

    x float64 [S, C]: masses in drawn order, 0 past count; before: the same one place earlier, 0 at the first; place
    int [C]; scratch float64 [2, S, C + 1], the program's own. A round halves the interval BITS times: a lane follows
    the wealth at one of its inner places, row by row.
    """
    tl.static_assert(BISECTIONS % BITS == 0)
    PARTS: tl.constexpr = 1 << BITS
    S: tl.constexpr = x.shape[0]
    C: tl.constexpr = x.shape[1]
    later = (place > 0)[None, :]
    # From the rows before i only; v_0 is 1/4.
    mean = (0.5 + tl.cumsum(before, 1)) / (place + 1)[None, :]
    deviation = tl.where(later, before - mean, 0.0)
    variance = tl.maximum((0.25 + tl.cumsum(deviation * deviation, 1)) / (place + 1)[None, :], 1e-12)
    bets = tl.where((place < count)[None, :], tl.sqrt(2.0 * target / (count * variance)), 0.0)
    own = scratch_ptr + tl.arange(0, S)[:, None] * (C + 1)
    tl.store(own + place[None, :], x)
    tl.store(own + S * (C + 1) + place[None, :], bets)
    tl.debug_barrier()

    part = tl.arange(0, PARTS)
    x_row = own + (part * 0)[None, :]
    bet_row = x_row + S * (C + 1)
    low = tl.zeros([S], tl.float64)
    width = tl.full([], 1.0, tl.float64)
    for _ in range(BISECTIONS // BITS):
        width = width / PARTS
        mu = low[:, None] + width * part[None, :]
        most = bet_cap / tl.maximum(mu, 1e-12)
        # So many factors of at least .02 don't underflow; of more, logarithms are added up.
        wealth = tl.full([S, PARTS], 1.0 if C <= 128 else 0.0, tl.float64)
        enough = tl.exp(target) if C <= 128 else target
        reached = wealth > enough
        mass, bet = tl.load(x_row), tl.load(bet_row)
        for start in range(0, C, 16):
            for i in tl.static_range(16):
                # The loads run one row ahead: waiting for each would take most of the time.
                next_mass, next_bet = tl.load(x_row + start + (i + 1)), tl.load(bet_row + start + (i + 1))
                growth = 1.0 + tl.where(bet < most, bet, most) * (mass - mu)
                wealth = wealth * growth if C <= 128 else wealth + tl.log(growth)
                reached = reached | (wealth >= enough)
                mass, bet = next_mass, next_bet
        # The wealth falls in mu, so those that reach it are the lowest ones.
        inner = reached & (part > 0)[None, :]
        low += width * tl.sum(tl.where(inner, 1.0, 0.0), 1).to(tl.float64)
    return low


@triton.jit
def betting_kernel(
    x_ptr,
    scratch_ptr,
    bound_ptr,
    count,
    TARGET: tl.constexpr,
    BET_CAP: tl.constexpr,
    BISECTIONS: tl.constexpr,
    BITS: tl.constexpr,
    C: tl.constexpr,
):
    """One candidate's rows: its bound. TARGET and BET_CAP are constants because arguments would be float32."""
    row = tl.program_id(0).to(tl.int64)
    place = tl.arange(0, C)
    real = place < count
    at = x_ptr + row * count + place
    x = tl.load(at, mask=real, other=0.0)
    before = tl.load(at - 1, mask=real & (place > 0), other=0.0)
    target = tl.full([], TARGET, tl.float64)
    scratch = scratch_ptr + row * 2 * (C + 1)
    bound = betting_bounds(
        x[None, :], before[None, :], place, count, scratch, target, BET_CAP, BISECTIONS, BITS
    )
    tl.store(bound_ptr + row, tl.sum(bound, 0))


@triton.jit
def single_kernel(
    columns_ptr, counts_ptr, single_ptr, width, key_blocks, BLOCK_K: tl.constexpr, LEVELS: tl.constexpr
):
    """One unit: the smallest level that reads a column of each KV block singly.

    Columns come best first, so the levels are written from the dearest to the cheapest one: the last one stays.
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


@triton.jit
def laps_kernel(times_ptr, laps_ptr, count, COUNT: tl.constexpr):
    """Nanoseconds int64 [count + 1] -> microseconds between them, float64 [count]."""
    lap = tl.arange(0, COUNT)
    real = lap < count
    after = tl.load(times_ptr + lap + 1, mask=real, other=0)
    before = tl.load(times_ptr + lap, mask=real, other=0)
    tl.store(laps_ptr + lap, (after - before).to(tl.float64) / 1e3, mask=real)


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
    positions_ptr,
    closed_stride,
    heads,
    count,
    drawn,
    query_blocks,
    key_blocks,
    columns,
    mask_columns,
    position,
    BLOCK_Q: tl.constexpr,
    BLOCK_K: tl.constexpr,
    COLUMNS: tl.constexpr,
    MASK_COLUMNS: tl.constexpr,
    POOL: tl.constexpr,
    MASK_POOL: tl.constexpr,
    PARTS: tl.constexpr,
    MASK_PARTS: tl.constexpr,
    LAST: tl.constexpr,
):
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
    for start in range(0, POOL, PARTS):
        # Nothing beyond the diagonal holds any mass.
        n = column[:, None] * POOL + (start + part)
        inside = (n <= reach) & (start + part < POOL)
        most = tl.maximum(most, tl.max(tl.load(own + n, mask=inside, other=0.0), 1))
    tl.store(picture_ptr + at * columns + column, most.to(tl.float16), mask=column < columns)

    part = tl.arange(0, MASK_PARTS)[None, :]
    cell = tl.arange(0, MASK_COLUMNS)
    level_row = row // BLOCK_Q * key_blocks
    own_row = unit * query_blocks * key_blocks + level_row
    closed = tl.full([MASK_COLUMNS], LAST, tl.int32)
    slash, top_k, top_p = closed, closed, closed
    for start in range(0, MASK_POOL, MASK_PARTS):
        n = cell[:, None] * MASK_POOL + (start + part)
        inside = (n <= reach) & (start + part < MASK_POOL)
        level = tl.load(closed_ptr + unit // heads * closed_stride + level_row + n, mask=inside, other=NEVER)
        closed = tl.minimum(closed, tl.min(level.to(tl.int32), 1))
        level = tl.load(slash_ptr + own_row + n, mask=inside, other=NEVER)
        # A block of which only single columns are read counts from their smallest level on.
        single = tl.load(single_ptr + unit * key_blocks + n, mask=inside, other=NEVER)
        slash = tl.minimum(slash, tl.min(tl.minimum(level.to(tl.int32), single.to(tl.int32)), 1))
        level = tl.load(top_k_ptr + own_row + n, mask=inside, other=NEVER)
        top_k = tl.minimum(top_k, tl.min(level.to(tl.int32), 1))
        level = tl.load(top_p_ptr + own_row + n, mask=inside, other=NEVER)
        top_p = tl.minimum(top_p, tl.min(level.to(tl.int32), 1))
    out = masks_ptr + (unit * 2 * drawn + picture_row) * mask_columns + cell
    tl.store(out, (closed | (slash << 4)).to(tl.uint8), mask=cell < mask_columns)
    tl.store(out + drawn * mask_columns, (top_k | (top_p << 4)).to(tl.uint8), mask=cell < mask_columns)
