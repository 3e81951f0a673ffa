"""Latency limits, refusals and what a session keeps of them: nothing half done. CPU only."""

import math
from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.audit.rows import RowAuditor
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import LatencyBudget
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import decide
from routesparse.engine.errors import ConfigError, NumericsError
from routesparse.engine.method.predictor import ErrorPredictor
from routesparse.engine.method.probe import run_probe
from routesparse.engine.method.records import CERTIFICATE
from routesparse.engine.method.segments import split
from routesparse.engine.runtime.current_prompt import KEPT_PROMPTS
from routesparse.engine.runtime.session import RoutingSession


def decisions(routed):
    return list(routed.trace.prompts[-1].decisions()) if routed.trace.prompts else []


@pytest.mark.parametrize("policy", ["certified", "budgeted", "strict"])
def test_the_limit_is_shared_over_segments_by_their_dense_work(oracle, start, config, policy):
    settings = replace(config, policy=policy, budget=LatencyBudget(0.6, "fraction"), segment_tokens=256)
    routed, call = start(settings)
    call(oracle.draw_inputs(5, n_q=768))
    found = decisions(routed)
    dense = np.array([4 * oracle.PROFILE.dense_us(d.segment) for d in found])
    np.testing.assert_allclose([d.limit_us for d in found], 0.6 * dense)
    np.testing.assert_allclose([d.dense_us for d in found], dense)


@pytest.mark.parametrize("share", [0.35, 0.5, 0.8])
def test_strict_never_plans_above_an_attainable_limit(oracle, start, config, share):
    limit = LatencyBudget(share, "fraction")
    settings = replace(config, tau=0.95, gate_threshold=None, policy="strict", budget=limit)
    routed, call = start(settings)
    call(oracle.draw_inputs(6))
    (found,) = decisions(routed)
    assert not found.routed.over_budget
    assert found.planned_us <= found.limit_us * (1 + 1e-9)
    failing = found.sparse & (found.certified.lower_mass < 0.95)
    assert (failing == found.certified.unmet).all()


def test_an_unattainable_limit_runs_the_cheapest_plan_and_is_recorded(oracle, start, config):
    settings = replace(config, policy="strict", budget=LatencyBudget(2.0, "us"))
    routed, call = start(settings)
    call(oracle.draw_inputs(6))
    (found,) = decisions(routed)
    assert found.routed.over_budget
    assert (found.certified.choice == found.scores.kernel_us.argmin(1)).all()


def test_a_limit_below_the_probe_is_refused_with_both_numbers(oracle, start, config):
    routed, call = start(replace(config, policy="strict", budget=LatencyBudget(0.5, "us")))
    told = r"leaves 0 us for segment 0 of a layer, below the probe's 1 us; raise the budget"
    with pytest.raises(ConfigError, match=told):
        call(oracle.draw_inputs(6))
    assert not decisions(routed)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf], ids=str)
@pytest.mark.parametrize("name", ["q", "k"])
def test_nan_or_inf_names_the_layer_and_leaves_no_record_of_the_prompt(oracle, start, name, value):
    routed, call = start()
    inputs = oracle.draw_inputs(7)
    call(inputs, 0)
    getattr(inputs, name)[0, 1, 5 if name == "k" else -3, :] = value
    with pytest.raises(NumericsError, match="layer 1: NaN or Inf in the attention scores; nothing was"):
        call(inputs, 1)
    assert not decisions(routed) and routed.trace.decisions == ()


def test_after_a_refused_prompt_a_chunk_joins_no_older_one(oracle, start):
    """Its keys belong to the prompt that failed: it runs dense, and the older prompt keeps its length."""
    routed, call = start()
    call(oracle.draw_inputs(7, n_q=400))
    broken = oracle.draw_inputs(7, n_q=400)
    broken.k[:] = math.nan
    with pytest.raises(NumericsError):
        call(broken)
    late = oracle.draw_inputs(8, n_q=300, n_k=700)
    out = routed.attend(late, layer=0)
    assert torch.allclose(out.double(), oracle.attention(late), atol=2e-5)
    (kept,) = routed.trace.prompts
    assert kept.tokens == 400 and len(decisions(routed)) == 1
    call(oracle.draw_inputs(7, n_q=500))
    assert [p.tokens for p in routed.trace.prompts] == [400, 500]


def test_an_interrupted_prefill_leaves_no_prompt_and_a_decoding_step_forgets_no_finished_one(oracle, start):
    routed, call = start()
    for ends in (False, True):
        routed.start()
        call(oracle.draw_inputs(7, n_q=400))
        if ends:
            routed.finish()
    token = oracle.draw_inputs(8, n_q=1, n_k=401)
    for _ in range(3):  # each was stopped before it ended
        routed.start()
        routed.attend(token, layer=0)
    assert [prompt.tokens for prompt in routed.trace.prompts] == [400] and len(decisions(routed)) == 1


def test_a_calibration_brings_its_gate_and_alpha(oracle, config):
    calibration = Calibration("prose", "prose", 0.77, 0.11, "demo", "0", "", {}, (), (), 0, {})
    settings = replace(config, policy="certified", gate_threshold=None)
    routed = RoutingSession(settings, calibration, profile=oracle.PROFILE)
    inputs = oracle.draw_inputs(8)
    routed.attend(inputs, layer=0)
    (found,) = decisions(routed)
    assert (found.gate_threshold == 0.77).all()
    np.testing.assert_allclose(found.risk, found.scores.risk(0.11, 0.0))


def test_a_long_session_keeps_its_last_prompts_only(oracle, start):
    routed, call = start()
    for seed in range(KEPT_PROMPTS + 2):
        call(oracle.draw_inputs(seed, n_q=200))
    assert len(routed.trace.prompts) == KEPT_PROMPTS


def test_the_router_never_sees_the_certificate_rows(oracle, config, monkeypatch):
    """Certificate rows that lose everything change no score, risk or routing, and fail every certificate."""
    inputs = oracle.draw_inputs(9)
    segment = split(700, 700, config)[-1]
    settings = LayerSettings(config, 0.6, oracle.PROFILE)
    before = decide(inputs, segment, 0, settings)

    def poisoned(*arguments):
        probe = run_probe(*arguments)
        part = probe.rows.slice_of(CERTIFICATE)
        probe.block_mass[:, :, part] = 0.0
        probe.lse[:, :, part] = 1e9
        return probe

    monkeypatch.setattr("routesparse.engine.decide.layer.run_probe", poisoned)
    after = decide(inputs, segment, 0, settings)
    for name in ("mass", "recent_mass", "disagreement", "density", "kernel_us"):
        np.testing.assert_array_equal(getattr(after.scores, name), getattr(before.scores, name))
    assert (after.routed.choice == before.routed.choice).all() and before.sparse.any()
    assert set(after.certified.fallback[u] for u in np.flatnonzero(before.sparse)) == {"dense"}


def test_rows_are_redrawn_for_every_layer_and_segment_and_the_same_on_every_run(oracle, config):
    inputs = oracle.draw_inputs(9)
    segment = split(700, 700, config)[-1]

    def rows(layer, index, seed=0):
        place = replace(segment, index=index)
        settings = LayerSettings(replace(config, seed=seed), 0.6, oracle.PROFILE)
        return decide(inputs, place, layer, settings).probe.rows.rows

    first = rows(0, 0)
    assert (rows(0, 0) == first).all()
    for other in (rows(1, 0), rows(0, 1), rows(0, 0, seed=1)):
        assert (other != first).any()


def test_the_calibrations_predictor_enters_the_risk_and_the_record(oracle, config):
    """One tree, one split: e = .3 where g <= .9, else .1."""
    predictor = ErrorPredictor(0.1, ((0, -1, -1),), ((0.9, 0.0, 0.0),), ((1, 0, 0),), ((2, 0, 0),),
                               ((0.0, 0.2, 0.0),), 1)  # fmt: skip
    calibration = Calibration(
        "c", "d", 0.6, 0.5, "m", "r", "l", {}, (), (), 0, {}, predictor=predictor,
    )  # fmt: skip
    config = replace(config, gate_threshold=None, beta=2.0)
    routed = RoutingSession(config, calibration, profile=oracle.PROFILE)
    inputs = oracle.draw_inputs(1)
    routed.attend(inputs, layer=0)
    rows = routed.trace.record().candidates
    for row in rows:
        g = min(row.mass, row.recent_mass)
        e = 0.0 if row.pattern == "dense" else 0.3 if g <= 0.9 else 0.1
        assert row.predicted_error == pytest.approx(e)
        assert row.risk == pytest.approx(max(0.0, 1 - g + 0.5 * row.disagreement + 2 * e), abs=1e-6)
    assert {row.predicted_error for row in rows} > {0.0}


def test_a_padded_prompt_without_real_rows_in_a_segment_is_not_audited_there(oracle, config):
    """The second prompt's padding covers its whole first segment."""
    config = replace(config, segment_tokens=256)
    routed = RoutingSession(config, profile=oracle.PROFILE, auditor=RowAuditor(16))
    inputs = oracle.draw_inputs(9, batch=2, n_q=512, key_start=[0, 300])
    routed.attend(inputs, layer=0)
    passes = routed.trace.prompts[-1].passes
    audits = [row for audited in passes[0].audits for row in audited.units]
    assert audits
    assert not [a for a in audits if a.batch_index == 1 and a.segment == 0]
