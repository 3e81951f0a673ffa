"""The device code of a layer's climb (step 5 of the policy "priced").

Its twin is
engine/method/layer_fallback.py, the wealth's formula stands in engine/method/layer_certificate.py. Sums over heads and
rounds are float64 in another order than the twin's, so a wealth may differ from its by rounding.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit
def product(a, b):
    return a * b


@triton.jit
def layer_reaches(x, inside, place, heads, rounds, target, bet_cap, mu):
    """Whether the bound of a layer's mean reaches mu (layer_certificate.layer_passes); every mean reaches 0.

    x float64 [H, C]: masses in drawn order; inside bool [H, C]: of heads rows and rounds columns; place int [C].
    """
    # Centres and bets know the rounds before their own: a sum up to it, less its own part.
    apart = tl.where(inside, x - (tl.sum(tl.where(inside, x, 0.0), 0) / heads)[None, :], 0.0)
    centres = (tl.cumsum(apart, 1) - apart) / (place + 1)[None, :]
    rest = tl.where(inside, x - centres, 0.0)
    count = heads * (place + 1) + 1
    mean = (0.5 + tl.cumsum(tl.sum(rest, 0), 0)) / count
    deviation = tl.where(inside, rest - mean[None, :], 0.0)
    squares = tl.sum(deviation * deviation, 0)
    variance = tl.maximum((0.25 + (tl.cumsum(squares, 0) - squares)) / (count - heads), 1e-12)
    bets = tl.sqrt(2.0 * target / (heads * rounds * variance))
    most = bet_cap / (tl.maximum(mu, 1e-12) + tl.max(tl.where(inside, centres, 0.0), 0))
    growth = tl.where(inside, 1.0 + tl.minimum(bets, most)[None, :] * (x - mu - centres), 1.0)
    # So many factors of at least .02 don't underflow (launch.MOST_HEADS); of rounds, logarithms are added up.
    wealth = tl.cumsum(tl.log(tl.reduce(growth, 0, product)), 0)
    return tl.max(wealth, 0) >= tl.where(mu > 0.0, target, -float("inf"))


@triton.jit(do_not_specialize=["at_choice", "at_ladder", "at_state", "at_passed", "at_layer"])
def climb_kernel(
    row_mass_ptr, settings_ptr, out_ptr, choice_ptr,
    at_choice, at_ladder, at_state, at_passed, at_layer, heads, count, width, first, certificate,
    TESTS: tl.constexpr, FALLBACK: tl.constexpr, CERTIFICATE: tl.constexpr, HEADS: tl.constexpr,
):  # fmt: skip
    """One prompt's layer: its test at every rung, and its heads' final candidates. Certificate rows begin at ``first``.

    out float64, from at_... on: choice, state [units]; ladder, passed (both read) [units, TESTS]; layer passed
    [prompts, TESTS]. choice int64 [units].
    """
    prompt = tl.program_id(0).to(tl.int64)
    target = tl.load(settings_ptr + 6)
    bet_cap = tl.load(settings_ptr + 7)
    tau = tl.load(settings_ptr + 11)
    head = tl.arange(0, HEADS)
    place = tl.arange(0, CERTIFICATE)
    real = head < heads
    inside = real[:, None] & (place < certificate)[None, :]
    unit = prompt * heads + head
    rows = row_mass_ptr + ((unit * count + first)[:, None] + place[None, :]) * width
    ladder_ptr = out_ptr + at_ladder + unit * TESTS
    # Past the last rung that fails.
    state = tl.zeros([HEADS], tl.int32)
    layer_state = tl.zeros([], tl.int32)
    for rung in range(TESTS):
        ladder = tl.load(ladder_ptr + rung, mask=real, other=-1.0).to(tl.int32)
        sparse = (ladder >= 0)[:, None]
        # A dense head keeps everything.
        x = tl.load(rows + tl.maximum(ladder, 0)[:, None], mask=inside & sparse, other=1.0).to(tl.float64)
        reached = layer_reaches(x, inside, place, heads, certificate, target, bet_cap, tau)
        tl.store(out_ptr + at_layer + prompt * TESTS + rung, reached.to(tl.float64))
        passed = tl.load(out_ptr + at_passed + unit * TESTS + rung, mask=real, other=1.0)
        state = tl.where(passed > 0.0, state, rung + 1)
        layer_state = tl.where(reached, layer_state, rung + 1)
    state = tl.maximum(state, layer_state)
    if not FALLBACK:
        state = tl.zeros([HEADS], tl.int32)
    # Past the ladder's last rung stands dense.
    final = tl.load(ladder_ptr + state, mask=real & (state < TESTS), other=-1.0).to(tl.int32)
    final = tl.where(final >= 0, final, width - 1)
    tl.store(choice_ptr + unit, final.to(tl.int64), mask=real)
    tl.store(out_ptr + at_choice + unit, final.to(tl.float64), mask=real)
    tl.store(out_ptr + at_state + unit, state.to(tl.float64), mask=real)
