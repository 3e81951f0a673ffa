"""The device code of a unit's route (steps 3 to 5).

One program a unit (b, h);
what the tensor operations of the engine do in float64 is done in float64 here, in the same order, without fused
multiply-adds: given the same means of masses, a unit gets the same candidate to the last bit.
"""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.betting_bound.kernel import betting_bounds, means_reach
from routesparse.kernels.device_functions import row_mean


@triton.jit
def taken(values, place, at):
    """values[place == at], of exactly one place; 0 where there is none."""
    return tl.sum(tl.where(place == at, values, 0.0), 0)


@triton.jit
def following_rung(cost, mass, allowed, c, last, next_budget):
    """fallback.escalation's next candidate after ``last``, -1 where there is none."""
    better = allowed & (mass > taken(mass, c, last)) & (cost >= next_budget * taken(cost, c, last))
    price = tl.where(better, cost, float("inf"))
    # The best mass among equally cheap ones, then the first.
    cheapest = better & (price == tl.min(price, 0))
    following = tl.argmax(tl.where(cheapest, mass, -float("inf")), 0)
    return tl.where(tl.max(better.to(tl.int32), 0) > 0, following, -1)


@triton.jit
def rung_masses(base, ladder, width, certificate, CERTIFICATE: tl.constexpr):
    """betting_bounds's (x, before, place) of a unit's certificate rows at base; candidate 0's where no rung is."""
    place = tl.arange(0, CERTIFICATE)
    at = base + place[None, :] * width + tl.maximum(ladder, 0)[:, None]
    inside = (place < certificate)[None, :]
    x = tl.load(at, mask=inside, other=0.0).to(tl.float64)
    before = tl.load(at - width, mask=inside & (place > 0)[None, :], other=0.0).to(tl.float64)
    return x, before, place


@triton.jit
def next_level(cost, following, c, last, dense_us):
    """layer_fallback.levels_above's next candidate after ``last``, -1 where there is none; following: next_levels'."""
    above = tl.sum(tl.where(c == last, following, 0), 0)
    return tl.where(taken(cost, c, above) < dense_us, above, -1)


@triton.jit(
    do_not_specialize=[
        "at_routed", "at_flags", "at_ladder", "at_passed", "at_certificate", "at_described", "at_finite"
    ]
)  # fmt: skip
def route_kernel(
    row_mass_ptr, tiles_ptr, columns_ptr, density_ptr, entropy_ptr, local_ptr, agreement_ptr, finite_ptr,
    following_ptr, settings_ptr, out_ptr,
    at_routed, at_flags, at_ladder, at_passed, at_certificate, at_described, at_finite, units, count, width,
    recent, routing, certificate,
    BOUNDARY: tl.constexpr, TESTS: tl.constexpr, ROWS: tl.constexpr, CERTIFICATE: tl.constexpr,
    C: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One unit: its candidates' scores, the cheapest admissible one, and its ladder, all written to the record.

    settings float64: see launch.Settings. out float64: scores [6, units, width] (mass, recent mass, u, density,
    kernel_us, risk), and from at_... on: routed [units]; limited, over_budget; ladder [units, TESTS]; certificate
    masses [units, certificate, width]; descriptors [3, units]; finite. following int32 [width], next_levels', under the
    policy "priced", which tests the unit's rungs at once: passed [units, TESTS]. None under the policy "certified".
    """
    unit = tl.program_id(0).to(tl.int64)
    fixed_us = tl.load(settings_ptr)
    tile_us = tl.load(settings_ptr + 1)
    column_us = tl.load(settings_ptr + 2)
    dense_us = tl.load(settings_ptr + 3)
    alpha = tl.load(settings_ptr + 4)
    dense_share = tl.load(settings_ptr + 5)

    # 3. What each candidate covers and costs.
    c = tl.arange(0, C)
    real = c < width
    dense = width - 1
    own = row_mass_ptr + unit * count * width
    at = unit * width + c
    tiles = tl.load(tiles_ptr + at, mask=real, other=0.0).to(tl.float64)
    columns = tl.load(columns_ptr + at, mask=real, other=0.0).to(tl.float64)
    density = tl.load(density_ptr + at, mask=real, other=0.0).to(tl.float64)
    recent_mass = row_mean(own, recent, width, ROWS, C)
    mass = row_mean(own + recent * width, routing, width, ROWS, C)
    centre = recent_mass + mass
    if BOUNDARY:
        edge_mass = row_mean(own + (recent + routing + certificate) * width, BOUNDARY, width, ROWS, C)
        centre = (centre + edge_mass) / 3.0
        apart = (edge_mass - centre) * (edge_mass - centre)
    else:
        centre = centre / 2.0
        apart = tl.zeros([C], tl.float64)
    apart += (recent_mass - centre) * (recent_mass - centre) + (mass - centre) * (mass - centre)
    kinds: tl.constexpr = 3 if BOUNDARY else 2
    disagreement = tl.sqrt(apart / kinds).to(tl.float32).to(tl.float64)
    cost = tl.where(c == dense, dense_us, fixed_us + tile_us * tiles + column_us * columns)
    g = tl.minimum(mass, recent_mass)
    risk = tl.maximum(1.0 - g + alpha * disagreement, 0.0)
    plane = units * width
    tl.store(out_ptr + at, mass, mask=real)
    tl.store(out_ptr + plane + at, recent_mass, mask=real)
    tl.store(out_ptr + 2 * plane + at, disagreement, mask=real)
    tl.store(out_ptr + 3 * plane + at, density, mask=real)
    tl.store(out_ptr + 4 * plane + at, cost, mask=real)
    tl.store(out_ptr + 5 * plane + at, risk, mask=real)

    # 4. The cheapest admissible candidate. A sparse one that costs as much as dense is never taken.
    if following_ptr is None:
        threshold = tl.load(settings_ptr + 9)
    else:
        priced = tl.load(settings_ptr + 9).to(tl.int32)
        own_g = taken(g, c, priced)
        threshold = tl.where(c == priced, own_g, 1.0 - tl.load(settings_ptr + 10) * (1.0 - own_g))
    admissible = real & (g >= threshold)
    price = tl.where(admissible, cost, float("inf"))
    routed = tl.argmin(tl.where(c == dense, dense_us * dense_share, price), 0)
    tl.store(out_ptr + at_routed + unit, routed.to(tl.float64))

    # 5. The ladder is known beforehand.
    rung = tl.arange(0, S)
    active = routed != dense
    allowed = admissible & (c != dense) & (cost < dense_us)
    ladder = tl.where((rung == 0) & active, routed, -1)
    last = routed
    climbing = active
    for step in tl.static_range(1, TESTS):
        if following_ptr is None:
            following = following_rung(cost, g, allowed, c, last, tl.load(settings_ptr + 10))
        else:
            following = next_level(cost, tl.load(following_ptr + c, mask=real, other=-1), c, last, dense_us)
        climbing = climbing & (following >= 0)
        ladder = tl.where((rung == step) & climbing, following, ladder)
        last = tl.where(climbing, following, last)
    at_rung = unit * TESTS + rung
    tl.store(out_ptr + at_ladder + at_rung, ladder.to(tl.float64), mask=rung < TESTS)
    if following_ptr is not None:
        first = own + (recent + routing) * width
        x, before, place = rung_masses(first, ladder, width, certificate, CERTIFICATE)
        target, bet_cap, tau = tl.load(settings_ptr + 6), tl.load(settings_ptr + 7), tl.load(settings_ptr + 8)
        passed = means_reach(x, before, place, certificate, target, bet_cap, tau) | (ladder < 0)
        tl.store(out_ptr + at_passed + at_rung, passed.to(tl.float64), mask=rung < TESTS)

    # What else the record keeps.
    described = out_ptr + at_described + unit
    tl.store(described, tl.load(entropy_ptr + unit).to(tl.float64))
    tl.store(described + units, tl.load(local_ptr + unit).to(tl.float64))
    tl.store(described + 2 * units, tl.load(agreement_ptr + unit).to(tl.float64))
    if unit == 0:
        tl.store(out_ptr + at_flags + tl.arange(0, 2), tl.zeros([2], tl.float64))
        tl.store(out_ptr + at_finite, tl.load(finite_ptr).to(tl.float64))
    some = tl.arange(0, 1024)
    masses = certificate * width
    for start in range(0, masses, 1024):
        left = start + some < masses
        part = tl.load(own + (recent + routing) * width + start + some, mask=left, other=0.0)
        tl.store(out_ptr + at_certificate + unit * masses + start + some, part.to(tl.float64), mask=left)


@triton.jit(do_not_specialize=["at_choice", "at_ladder"])
def certify_kernel(
    row_mass_ptr, settings_ptr, scratch_ptr, out_ptr, choice_ptr,
    at_choice, at_ladder, units, count, width, first, certificate,
    BISECTIONS: tl.constexpr, BITS: tl.constexpr, TESTS: tl.constexpr, FALLBACK: tl.constexpr,
    CERTIFICATE: tl.constexpr, S: tl.constexpr,
):  # fmt: skip
    """One unit, step 5: the bounds of its ladder and its final candidate. Its certificate rows start at row ``first``.

    out float64, from at_... on: choice, kind, unmet, lower mass [4, units]; ladder (read), bounds, tested [3, units,
    TESTS]. choice int64 [units]. scratch: betting_bounds' of each unit.
    """
    unit = tl.program_id(0).to(tl.int64)
    target = tl.load(settings_ptr + 6)
    bet_cap = tl.load(settings_ptr + 7)
    tau = tl.load(settings_ptr + 8)
    rung = tl.arange(0, S)
    rungs = out_ptr + at_ladder + unit * TESTS + rung
    ladder = tl.load(rungs, mask=rung < TESTS, other=-1.0).to(tl.int32)
    rows = row_mass_ptr + (unit * count + first) * width
    x, before, place = rung_masses(rows, ladder, width, certificate, CERTIFICATE)
    scratch = scratch_ptr + unit * 2 * S * (CERTIFICATE + 1)
    bounds = betting_bounds(x, before, place, certificate, scratch, target, bet_cap, BISECTIONS, BITS)

    # A unit without a ladder is dense from the start.
    dense = width - 1
    active = tl.max(tl.where(rung == 0, ladder, -1), 0) >= 0
    failing = tl.where(bounds >= tau, 0, 1)
    failed = active & FALLBACK & (tl.max(tl.where(rung == 0, failing, 0), 0) > 0)
    reached = tl.zeros([], tl.int32)
    tested = (rung == 0) & active
    for step in tl.static_range(1, TESTS + 1):
        reached = tl.where(failed, step, reached)
        testing = failed & (tl.max(tl.where(rung == step, ladder, -1), 0) >= 0)
        tested = tested | ((rung == step) & testing)
        failed = testing & (tl.max(tl.where(rung == step, failing, 0), 0) > 0)
    # Past the ladder's last rung stands dense.
    final = tl.max(tl.where(rung == reached, ladder, -1), 0)
    final = tl.where(final >= 0, final, dense)
    sparse = final != dense
    kind = tl.where(sparse, tl.where(reached > 0, 1, 0), tl.where(active, 2, 0))
    lower = tl.where(sparse, taken(bounds, rung, reached), float("nan"))
    tl.store(choice_ptr + unit, final.to(tl.int64))
    ended = out_ptr + at_choice + unit
    tl.store(ended, final.to(tl.float64))
    tl.store(ended + units, kind.to(tl.float64))
    tl.store(ended + 2 * units, tl.zeros([], tl.float64))
    tl.store(ended + 3 * units, lower)
    tl.store(rungs + units * TESTS, bounds, mask=rung < TESTS)
    tl.store(rungs + 2 * units * TESTS, tested.to(tl.float64), mask=rung < TESTS)
