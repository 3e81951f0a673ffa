"""The betting bound's device code, also what the route kernel certifies its units with."""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def running_bets(before, place, count, target):
    """The bets of each row from the rows before it only, before their cap; 0 past count. See ``betting_bounds``."""
    # v_0 is 1/4.
    mean = (0.5 + tl.cumsum(before, 1)) / (place + 1)[None, :]
    deviation = tl.where((place > 0)[None, :], before - mean, 0.0)
    variance = tl.maximum((0.25 + tl.cumsum(deviation * deviation, 1)) / (place + 1)[None, :], 1e-12)
    return tl.where((place < count)[None, :], tl.sqrt(2.0 * target / (count * variance)), 0.0)


@triton.jit
def means_reach(x, before, place, count, target, bet_cap, mu):
    """Whether the bound of each of S candidates reaches mu, from the wealth there alone: bool [S]. Every one reaches 0.

    x, before, place: as in ``betting_bounds``.
    """
    most = bet_cap / tl.maximum(mu, 1e-12)
    growth = tl.minimum(running_bets(before, place, count, target), most) * (x - mu)
    wealth = tl.cumsum(tl.log(1.0 + growth), 1)
    return tl.max(wealth, 1) >= tl.where(mu > 0.0, target, -float("inf"))


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
    bets = running_bets(before, place, count, target)
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
    x_ptr, scratch_ptr, bound_ptr, count,
    TARGET: tl.constexpr, BET_CAP: tl.constexpr, BISECTIONS: tl.constexpr, BITS: tl.constexpr,
    C: tl.constexpr,
):  # fmt: skip
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
