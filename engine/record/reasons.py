"""Reasons in words: why a unit got its candidate, and why not another one. The numbers are those that decided."""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from routesparse.engine.method.patterns import priced_candidate
from routesparse.engine.method.router import admissible
from routesparse.engine.rows import is_uncertified

if TYPE_CHECKING:
    from routesparse.engine.config import RouterConfig
    from routesparse.engine.decide.decision import Decision


def choice_reason(decision: Decision, unit: int, config: RouterConfig) -> str:
    """One sentence for the unit's final choice."""
    tau = config.least_head_mass
    place = int(decision.certified.choice[unit])
    dense = len(decision.candidates) - 1
    scores, threshold = decision.scores, float(decision.gate_threshold[unit])
    tests = [t for t in decision.certified.tests if t.unit == unit]
    if decision.certified.fallback[unit] == "dense":
        if (raised := layer_reason(decision, unit, config)) and all(t.passed for t in tests):
            return f"dense by fallback: {raised}"
        best = max(t.lower_mass for t in tests)
        return f"dense by fallback: the best of {len(tests)} certificates was {best:.3f} < tau {tau:.3f}"
    if place == dense:
        if decision.routed.limited:
            return "dense by the router: least total risk under T_l"
        if config.policy == "priced":
            return f"dense by the router: at price {config.price:g} sparse costs as much as dense"
        best = float(scores.gate_statistic[unit, :dense].max())
        if not admissible(best, threshold):
            return f"dense by the router: no sparse candidate reaches g >= {threshold:.3f} (best {best:.3f})"
        return "dense by the router: every sparse candidate with enough mass costs as much as dense"
    g = float(scores.gate_statistic[unit, place])
    bound = float(decision.certified.lower_mass[unit])
    verdict = f"certificate {bound:.3f} >= tau {tau:.3f}"
    if is_uncertified(decision.candidates[place].pattern, bound, tau):
        why = "T_l leaves no time to expand" if decision.certified.unmet[unit] else "fallback is off"
        verdict = f"certificate {bound:.3f} < tau {tau:.3f}, and {why}: it ran uncertified"
    if decision.certified.fallback[unit] == "expand":
        first = tests[0]
        name = decision.candidates[first.candidate]
        if first.passed and (raised := layer_reason(decision, unit, config)):
            return f"expanded {len(tests) - 1}x from {name.pattern} {name.budget} ({raised}); now {verdict}"
        return (
            f"expanded {len(tests) - 1}x from {name.pattern} {name.budget} "
            f"(certificate {first.lower_mass:.3f} < tau {tau:.3f}); now {verdict}"
        )
    if decision.routed.limited:
        return f"least total risk under T_l: g {g:.3f}, {verdict}"
    if config.policy == "priced":
        floor = f"the floor at price {config.price:g}"
        if place == priced_candidate(decision.candidates):
            return f"{floor}: g {g:.3f}, {verdict}"
        return f"cheaper than {floor} and keeps as much, g >= {threshold:.3f}: g {g:.3f}, {verdict}"
    return f"cheapest candidate with g >= {threshold:.3f}: g {g:.3f}, {verdict}"


def layer_reason(decision: Decision, unit: int, config: RouterConfig) -> str | None:
    """Why the unit's layer climbed; None where it did not."""
    layer, prompt = decision.certified.layer, unit // decision.heads
    if layer is None or not layer.rung[prompt]:
        return None
    return f"the layer's certificate was {layer.bounds[prompt, 0]:.3f} < tau_layer {config.tau_layer:.3f}"


def candidate_reason(decision: Decision, unit: int, place: int, tau: float) -> str:
    """Why this candidate is or is not the unit's choice."""
    scores, threshold = decision.scores, float(decision.gate_threshold[unit])
    chosen = int(decision.certified.choice[unit])
    if place == chosen:
        return "chosen"
    for test in decision.certified.tests:
        if test.unit == unit and test.candidate == place:
            if test.passed:
                return "left for a dearer level with its layer"
            return f"certificate {test.lower_mass:.3f} < tau {tau:.3f}"
    g, cost = float(scores.gate_statistic[unit, place]), float(scores.kernel_us[unit, place])
    paid = float(scores.kernel_us[unit, chosen])
    if not admissible(g, threshold) and not decision.routed.limited:
        side = "recent rows" if scores.recent_mass[unit, place] < scores.mass[unit, place] else "routing rows"
        return f"g {g:.3f} < {threshold:.3f} ({side})"
    if cost >= paid:
        return f"costs {_ratio(cost, paid)} of the choice"
    if decision.routed.limited:
        return f"risk {decision.risk[unit, place]:.3f} against {decision.risk[unit, chosen]:.3f}"
    return f"cheaper, but passed over when expanding: {_ratio(cost, paid)} of the choice, g {g:.3f}"


def _ratio(cost: float, paid: float) -> str:
    return f"{cost / paid:.2f}x" if paid > 0 and np.isfinite(cost) else f"{cost:.0f} us"
