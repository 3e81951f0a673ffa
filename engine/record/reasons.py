"""Reasons in words: why a unit got its candidate, and why not another one. The numbers are those that decided."""

from __future__ import annotations

import numpy as np

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import Decision
from routesparse.engine.method.families import priced_candidate
from routesparse.engine.method.policy import OTHER_LOSS
from routesparse.engine.method.router import admissible
from routesparse.engine.rows import is_uncertified


def choice_reason(decision: Decision, unit: int, config: RouterConfig) -> str:
    """One sentence for the unit's final choice."""
    tau = config.least_head_mass
    place = int(decision.certified.choice[unit])
    dense = len(decision.candidates) - 1
    scores, threshold = decision.scores, float(decision.gate_threshold[unit].max())
    tests = [t for t in decision.certified.tests if t.unit == unit]
    if decision.certified.fallback[unit] == "dense":
        if why := climb_reason(decision, unit, config):
            return f"dense by fallback: {why}"
        best = max(t.lower_mass for t in tests)
        return f"dense by fallback: the best of {len(tests)} certificates was {_down(best)} < τ {tau:.3f}"
    if place == dense:
        if decision.routed.limited:
            return "dense by the router: least total risk under Tℓ"
        if config.policy == "priced":
            return f"dense by the router: at price {config.price:g} sparse costs as much as dense"
        best = float(scores.gate_statistic[unit, :dense].max())
        if not admissible(best, threshold):
            return (
                f"dense by the router: no sparse candidate reaches g ≥ {threshold:.3f} (best {_down(best)})"
            )
        return "dense by the router: every sparse candidate with enough mass costs as much as dense"
    g = float(scores.gate_statistic[unit, place])
    bound = float(decision.certified.lower_mass[unit])
    verdict = f"certificate {_down(bound)} ≥ τ {tau:.3f}"
    if is_uncertified(decision.candidates[place].pattern, bound, tau):
        why = "Tℓ leaves no time to expand" if decision.certified.unmet[unit] else "fallback is off"
        verdict = f"certificate {_down(bound)} < τ {tau:.3f}, and {why}: it ran without certified mass"
    if decision.certified.fallback[unit] == "expand":
        first = tests[0]
        name = decision.candidates[first.candidate]
        if why := climb_reason(decision, unit, config):
            return f"expanded {len(tests) - 1}x from {name.pattern} {name.budget} ({why}); now {verdict}"
        return (
            f"expanded {len(tests) - 1}x from {name.pattern} {name.budget} "
            f"(certificate {_down(first.lower_mass)} < τ {tau:.3f}); now {verdict}"
        )
    if decision.routed.limited:
        return f"least total risk under Tℓ: g {g:.3f}, {verdict}"
    if config.policy == "priced":
        floor = f"the floor at price {config.price:g}"
        if place == priced_candidate(decision.candidates):
            return f"{floor}: g {g:.3f}, {verdict}"
        return (
            f"cheaper than {floor} and loses at most {OTHER_LOSS:g} times as much, g ≥ {threshold:.3f}: "
            f"g {g:.3f}, {verdict}"
        )
    return f"cheapest candidate with g ≥ {threshold:.3f}: g {g:.3f}, {verdict}"


def climb_reason(decision: Decision, unit: int, config: RouterConfig) -> str | None:
    """Whose certificate made the unit climb its ladder, under the policy "priced"; None under another one."""
    layer, heads = decision.certified.layer, decision.certified.head_rung
    if layer is None or heads is None:
        return None
    prompt = unit // decision.heads
    scope, bound, tau = climb_cause(
        decision, unit, config, max(int(layer.rung[prompt]), int(heads[unit])) - 1
    )
    who = "the layer's certificate" if scope == "layer" else "its certificate"
    return f"{who} was {_down(bound)} < {'τ layer' if scope == 'layer' else 'τ'} {tau:.3f}"


def climb_cause(decision: Decision, unit: int, config: RouterConfig, rung: int) -> tuple[str, float, float]:
    """Why a unit left a rung: "head" or "layer", the bound of that certificate's dearest failing rung, and its tau.

    A rung is left for the head's own sake as long as its certificate asks for it, and after that for the layer's.
    """
    layer, heads = decision.certified.layer, decision.certified.head_rung
    assert layer is not None and heads is not None
    if rung < heads[unit]:
        bounds = [t.lower_mass for t in decision.certified.tests if t.unit == unit]
        return "head", bounds[min(int(heads[unit]), len(bounds)) - 1], config.tau_head
    prompt = unit // decision.heads
    return "layer", float(layer.bounds[prompt, int(layer.rung[prompt]) - 1]), config.tau_layer


def candidate_reason(decision: Decision, unit: int, place: int, tau: float) -> str:
    """Why this candidate is or is not the unit's choice."""
    scores, threshold = decision.scores, float(decision.gate_threshold[unit, place])
    chosen = int(decision.certified.choice[unit])
    if place == chosen:
        return "chosen"
    for test in decision.certified.tests:
        if test.unit == unit and test.candidate == place:
            if test.passed:
                return "passed, but its layer needed larger budgets"
            return f"certificate {_down(test.lower_mass)} < τ {tau:.3f}"
    g, cost = float(scores.gate_statistic[unit, place]), float(scores.kernel_us[unit, place])
    paid = float(scores.kernel_us[unit, chosen])
    if not admissible(g, threshold) and not decision.routed.limited:
        side = "recent rows" if scores.recent_mass[unit, place] < scores.mass[unit, place] else "routing rows"
        return f"g {_down(g)} < {threshold:.3f} ({side})"
    if cost >= paid:
        return f"costs {_ratio(cost, paid)} of the choice"
    if decision.routed.limited:
        return f"risk {decision.risk[unit, place]:.3f} against {decision.risk[unit, chosen]:.3f}"
    return f"cheaper, but passed over when expanding: {_ratio(cost, paid)} of the choice, g {g:.3f}"


def _down(value: float) -> str:
    """Rounded down, so that a bound just below its limit does not read as the limit: 0.89996 is "0.899"."""
    return f"{np.floor(1000 * value + 1e-9) / 1000:.3f}"


def _ratio(cost: float, paid: float) -> str:
    return f"{cost / paid:.2f}x" if paid > 0 and np.isfinite(cost) else f"{cost:.0f} us"
