"""Steps 3 to 5 for the U = B * H units of one layer and segment: price, router, certificate (paper section 3.4).

Under the policies "priced" and "certified" (no latency limit, no error predictor, betting bound) two kernels take all
units: scores, the cheapest candidate with g >= lambda and its ladder; then the certificates.
The method's own functions take every setting; given the same scores, both come to the same choice and record.
"""

from __future__ import annotations

import math
from dataclasses import replace

import numpy as np
import torch

from routesparse.engine.decide.decision import LayerSettings, record_layout, record_of
from routesparse.engine.device.constants import constant
from routesparse.engine.device.copies import Packed
from routesparse.engine.device.timing import Stamps
from routesparse.engine.method import fallback, policy, router
from routesparse.engine.method.certificate import error_of_a_test
from routesparse.engine.method.families import priced_candidate
from routesparse.engine.method.layer_fallback import Climb, climb, next_levels
from routesparse.engine.method.records import (
    CERTIFICATE,
    RECENT,
    ROUTING,
    CandidateMass,
    Context,
    Descriptors,
)
from routesparse.engine.method.router import Scores, gate_statistic, priced_threshold
from routesparse.kernels import route as kernel
from routesparse.kernels.betting_bound import BET_CAP
from routesparse.kernels.common import on_gpu, runs_triton


def route_units(
    context: Context,
    masses: CandidateMass,
    described: Descriptors,
    settings: LayerSettings,
    kernel_limit_us: float | None,
    stamps: Stamps,
) -> tuple[torch.Tensor, Packed]:
    """The final candidates int64 [B, H], and what the record keeps. Ends a lap, the last one."""
    if runs_triton(masses.row_mass) and kernel_takes(settings, masses.row_mass.shape[1], kernel_limit_us):
        choice, packed = route_by_kernel(context, masses, described, settings, stamps.laps)
        stamps.lap()
        stamps.elapsed_us(packed.part("laps_us"))
        return choice, packed
    return route_by_method(context, masses, described, settings, kernel_limit_us, stamps)


def kernel_takes(settings: LayerSettings, heads: int, kernel_limit_us: float | None) -> bool:
    """Whether the route kernels know this setting."""
    config = settings.config
    priced = config.policy == "priced"
    return (
        (kernel.climb_fits(heads, config.certificate_rows) if priced else config.policy == "certified")
        and kernel_limit_us is None
        and settings.predictor is None
        and config.beta == 0
        and config.bound == "betting"
        and config.max_tests <= kernel.MOST_TESTS
    )


def route_by_kernel(
    context: Context,
    masses: CandidateMass,
    described: Descriptors,
    settings: LayerSettings,
    laps: int,
) -> tuple[torch.Tensor, Packed]:
    """The final candidates int64 [B, H], and what the record keeps, but for its ``laps`` lap times."""
    config, profile, segment, probe = settings.config, settings.profile, context.segment, context.probe
    device = masses.row_mass.device
    batch, heads, _, width = masses.row_mass.shape
    tests, rows = config.max_tests, config.certificate_rows
    layout = record_layout(config.policy, B=batch, U=batch * heads, C=width, S=tests, R=rows, L=laps)
    size = sum(math.prod(shape) for shape, _ in layout.values())
    packed = Packed(torch.empty(size, dtype=torch.float64, device=device), layout)
    priced = config.policy == "priced"
    nothing = np.zeros(())
    # A layer's and a head's ladder need not split their errors.
    error = error_of_a_test(config.confidence, 1 if priced else config.max_tests)
    common = {
        "fixed_us": float(profile.sparse_us(segment, nothing, nothing)),
        "tile_us": profile.tile_us,
        "column_us": profile.column_us,
        "dense_us": profile.dense_us(segment),
        "alpha": config.alpha,
        "dense_share": policy.DENSE_SHARE,
        "target": math.log(1.0 / error),
        "bet_cap": BET_CAP,
        "tau": config.least_head_mass,
    }
    following = None
    if priced:
        following = constant(next_levels(context.candidates).astype(np.int32), device)
        numbers: kernel.Priced | kernel.Certified = kernel.Priced(
            **common,
            priced=priced_candidate(context.candidates),
            other_loss=policy.OTHER_LOSS,
            tau_layer=config.tau_layer,
        )
    else:
        numbers = kernel.Certified(
            **common, gate_threshold=settings.gate_threshold, next_budget=policy.NEXT_BUDGET
        )
    choice = kernel.route_units(
        masses.row_mass,
        masses.tiles,
        masses.columns,
        masses.density,
        (described.entropy, described.local_band, described.agreement),
        probe.finite,
        following,
        constant(np.array(numbers.values()), device),
        packed.values,
        packed.places(),
        probe.rows.sizes,
        tests=tests,
        fallback=config.fallback,
    )
    return choice, packed


def route_by_method(
    context: Context,
    masses: CandidateMass,
    described: Descriptors,
    settings: LayerSettings,
    kernel_limit_us: float | None,
    stamps: Stamps,
) -> tuple[torch.Tensor, Packed]:
    """The final candidates int64 [B, H], and what the record keeps. Ends a lap."""
    config, candidates, probe = settings.config, context.candidates, context.probe
    priced = config.policy == "priced"

    # 3. Retained mass, uncertainty and profiled latency of each candidate.
    scores = score_candidates(context, masses, described, settings)
    kernel_us = scores.kernel_us

    # 4. Eq. 6 under the layer's limit. Other solvers than "device" would make a GPU wait for the host.
    if on_gpu(kernel_us):
        config = replace(config, solver="device")
    risk = scores.risk(config.alpha, config.beta)
    g = scores.gate_statistic
    threshold = priced_threshold(g, priced_candidate(candidates)) if priced else settings.gate_threshold
    routed = router.choose(g, risk, kernel_us, config, threshold, kernel_limit_us)

    # 5. Expand or fall back where the certificate is below tau.
    certificate_mass = by_unit(masses.row_mass[:, :, probe.rows.slice_of(CERTIFICATE)])
    if priced:
        certified: fallback.Escalated | Climb = climb(
            kernel_us, certificate_mass, routed.choice, candidates, config, len(masses.row_mass)
        )
    else:
        slack = None
        if kernel_limit_us is not None:
            slack = kernel_limit_us - kernel_us.gather(1, routed.choice.unsqueeze(1)).sum()
        certified = fallback.certify(
            kernel_us, g, certificate_mass, routed.choice, config, settings.gate_threshold, slack
        )
    stamps.lap()
    packed = record_of(
        {
            **vars(scores),
            "risk": risk,
            "routed_choice": routed.choice,
            "limited": routed.limited,
            "over_budget": routed.over_budget,
            **vars(certified),
            "certificate_mass": certificate_mass,
            **{name: by_unit(x) for name, x in vars(described).items()},
            "finite": probe.finite,
            "laps_us": stamps.elapsed_us(),
        }
    )
    return certified.choice.view(described.entropy.shape), packed


def score_candidates(
    context: Context, masses: CandidateMass, described: Descriptors, settings: LayerSettings
) -> Scores:
    """The scores of the U = B * H units' candidates, float64 [U, C] each, dense last."""
    segment, probe = context.segment, context.probe
    kernel_us = settings.profile.sparse_us(segment, by_unit(masses.tiles), by_unit(masses.columns))
    kernel_us[:, -1] = settings.profile.dense_us(segment)
    mass, recent_mass = (masses.group_mean(probe, kind) for kind in (ROUTING, RECENT))
    disagreement = masses.disagreement(probe)
    predicted = None
    if settings.predictor is not None:
        gate_mass = gate_statistic(mass, recent_mass)
        predicted = settings.predictor(gate_mass, disagreement, described.entropy.unsqueeze(-1))
        predicted[..., -1] = 0.0
        predicted = by_unit(predicted)
    return Scores(
        mass=by_unit(mass),
        recent_mass=by_unit(recent_mass),
        disagreement=by_unit(disagreement),
        density=by_unit(masses.density),
        kernel_us=kernel_us,
        predicted_error=predicted,
    )


def by_unit(x: torch.Tensor) -> torch.Tensor:
    """[B, H, ...] -> float64 [U, ...]."""
    return x.flatten(0, 1).double()
