"""Reasons in words: each names what decided, with the numbers that decided. CPU only."""

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import decide
from routesparse.engine.method.fallback import CertificateTest, Certified, LayerBounds
from routesparse.engine.method.router import Routing
from routesparse.engine.method.segments import split
from routesparse.engine.record.reasons import candidate_reason, choice_reason, climb_cause

TAU = 0.9
CONFIG = RouterConfig(policy="certified", tau=TAU)


@pytest.fixture
def make(oracle):
    """make(choice, tests, fallback) -> a decision of one unit whose numbers are set by hand."""
    inputs = oracle.draw_inputs(0, heads=1, kv_heads=1, n_q=400)
    segment = split(400, 400, oracle.SMALL)[-1]
    base = decide(inputs, segment, 0, LayerSettings(oracle.SMALL, 0.925, oracle.PROFILE))
    width = len(base.candidates)
    cost = np.linspace(10, 100, width)[None]
    mass = np.linspace(0.7, 0.98, width)[None]
    mass[0, -1] = 1.0

    def build(choice, tests, fallback):
        scores = replace(base.scores, mass=mass, recent_mass=mass - 0.01, kernel_us=cost)
        lower = next((low for place, low in reversed(tests) if place == choice), np.nan)
        results = tuple(CertificateTest(0, place, low, low >= TAU) for place, low in tests)
        certified = Certified(np.array([choice]), np.array([lower]), results, (fallback,), np.array([False]))
        return replace(
            base,
            scores=scores,
            risk=scores.risk(0.5, 0),
            gate_threshold=np.full((1, width), 0.925),
            routed=Routing(np.array([tests[0][0]]), False, False),
            final=certified.choice,
            certify=lambda: certified,
        )

    return build


@pytest.mark.parametrize("policy", ["certified", "strict", "budgeted"])
@pytest.mark.parametrize("fallback", [True, False], ids=["fallback", "no-fallback"])
def test_every_unit_and_candidate_of_a_real_decision_has_a_reason(oracle, policy, fallback):
    budget = None if policy == "certified" else LatencyBudget(0.5, "fraction")
    config = replace(oracle.SMALL, policy=policy, budget=budget, fallback=fallback, tau=0.8)
    inputs = oracle.draw_inputs(1)
    segment = split(700, 700, config)[-1]
    limit = None if budget is None else 0.5 * 4 * oracle.PROFILE.dense_us(segment)
    settings = LayerSettings(config, config.effective_gate_threshold, oracle.PROFILE)
    d = decide(inputs, segment, 0, settings, limit)
    for unit in range(4):
        words = [choice_reason(d, unit, replace(CONFIG, tau=0.8))]
        words += [candidate_reason(d, unit, place, 0.8) for place in range(len(d.candidates))]
        assert all(words) and not any("nan" in w for w in words)
        assert words.count("chosen") == 1


PRICED = RouterConfig(policy="priced", tau_layer=0.5, tau_head=0.25)
LADDER = [(12, 0.223), (13, 0.261), (14, 0.298)]


def priced(decision, layer_rung, head_rung, bounds=(0.32, 0.36, 0.39)):
    """The decision with a layer and a head that climbed so many rungs."""
    layer = LayerBounds(np.array([bounds]), np.array([layer_rung]), np.array([np.nan]))
    certified = replace(decision.certified, layer=layer, head_rung=np.array([head_rung]))
    return replace(decision, certify=lambda: certified)


def test_each_step_of_a_climb_has_the_certificate_that_asked_for_it(make):
    decision = priced(make(14, LADDER, "expand"), 2, 1, (0.42, 0.45, 0.6))
    assert climb_cause(decision, 0, PRICED, 0) == ("head", 0.223, 0.25)
    assert climb_cause(decision, 0, PRICED, 1) == ("layer", 0.45, 0.5)


def test_a_certificate_that_just_misses_does_not_read_as_the_limit(make):
    d = make(13, [(12, 0.89996), (13, 0.93)], "expand")
    assert candidate_reason(d, 0, 12, TAU) == "certificate 0.899 < τ 0.900"
    assert "(certificate 0.899 < τ 0.900)" in choice_reason(d, 0, CONFIG)
