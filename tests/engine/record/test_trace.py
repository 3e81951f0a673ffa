"""A run's records: complete, consistent with each other and with the decisions, NULL where nothing was measured."""

import math
from collections import Counter
from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.audit.rows import RowAuditor
from routesparse.engine.calibration.artifact import Bucket, Calibration
from routesparse.engine.config import LatencyBudget
from routesparse.engine.errors import ConfigError
from routesparse.engine.method import families
from routesparse.engine.method.records import CERTIFICATE
from routesparse.engine.record import to_rows
from routesparse.engine.record.passes import RunInfo
from routesparse.engine.runtime.session import RoutingSession


def run(oracle, layers=2, calibration=None, audit_rows=50, **changes):
    """A session after one routed prompt of 640 tokens in two segments, batch of two, the second padded."""
    settings = replace(
        oracle.SMALL,
        **{"policy": "certified", "tau": 0.85, "gate_threshold": 0.87, "segment_tokens": 320, **changes},
    )
    routed = RoutingSession(
        settings, calibration, profile=oracle.PROFILE, auditor=audit_rows and RowAuditor(audit_rows)
    )
    for layer in range(layers):
        x = oracle.draw_inputs(layer, n_q=640, batch=2, key_start=[0, 33])
        routed.attend(x, layer=layer)
    return routed


PRICED = {"policy": "priced", "price": 1.5, "tau_layer": 0.8, "tau_head": 0.75, "gate_threshold": None}


@pytest.fixture(scope="module", params=[{}, PRICED], ids=["certified", "priced"])
def routed(request, oracle):
    return run(oracle, **request.param)


@pytest.fixture(scope="module")
def record(routed):
    return routed.trace.record()


@pytest.fixture(scope="module")
def found(routed):
    return list(routed.trace.prompts[-1].decisions())


def unit_of(row):
    return row.batch_index, row.layer, row.head, row.segment


def test_the_run_has_sparse_dense_and_fallen_back_units(record):
    """The other tests of this file mean something only then."""
    assert record.run.sparse_units and record.run.dense_fallback_units and record.fallbacks
    assert record.run.sparse_units < record.run.units


def test_every_candidate_of_every_unit_is_scored_and_one_is_chosen(record):
    chosen = {unit_of(c): c.candidate for c in record.candidates if c.chosen}
    assert chosen == {unit_of(c): c.candidate for c in record.choices}
    widths = Counter(unit_of(c) for c in record.candidates)
    last = {unit_of(c): c.candidate for c in record.candidates if c.pattern == "dense"}
    assert all(last[u] == widths[u] - 1 for u in widths)


def test_with_fallback_no_unit_runs_uncertified(record):
    assert record.uncertified == () and not any("uncertified" in c.reason for c in record.choices)


@pytest.mark.parametrize(
    "changes",
    [{"fallback": False}, {"policy": "strict", "budget": LatencyBudget(0.7, "fraction")}],
    ids=["no-fallback", "strict"],
)
def test_units_below_tau_ran_uncertified_and_say_so(oracle, changes):
    record = run(oracle, audit_rows=None, tau=0.86, **changes).trace.record()
    missed = [c for c in record.choices if c.lower_mass is not None and c.lower_mass < record.run.tau]
    assert missed and record.uncertified == tuple(missed)
    for choice in record.choices:
        assert ("ran without certified mass" in choice.reason) == (choice in missed), choice.reason
    assert record.run.unmet_units in (0, len(missed))


def test_certificates_stand_at_sparse_units_only(record):
    for choice in record.choices:
        sparse = choice.pattern != "dense"
        assert (choice.lower_mass is not None) is sparse
        assert (choice.row_lower_mass is not None) is sparse
        assert choice.conformal_lower_mass is None  # no calibration: not measured
        assert not sparse or (0 <= choice.lower_mass <= 1 and choice.lower_mass >= record.run.tau)
    assert all(a.lower_mass is not None for a in record.audits)


def test_no_number_is_nan(record):
    for table in (
        record.choices,
        record.candidates,
        record.fallbacks,
        record.audits,
        record.layers,
        (record.run,),
    ):
        for row in table:
            for name, value in vars(row).items():
                assert not (isinstance(value, float) and math.isnan(value)), name


def test_counts_of_the_run_are_those_of_its_rows(record):
    run, choices = record.run, record.choices
    assert run.sparse_units == sum(c.pattern != "dense" for c in choices)
    assert run.expanded_units == sum(c.fallback == "expand" for c in choices)
    assert run.dense_fallback_units == sum(c.fallback == "dense" for c in choices)
    dense = [c for c in choices if c.pattern == "dense"]
    assert run.dense_router_units + run.dense_fallback_units == len(dense)
    assert (run.layers, run.heads, run.segments, run.batch, run.tokens) == (2, 4, 2, 2, 640)


def test_layer_rows_add_up_their_segments(record, found):
    for row in record.layers:
        mine = [d for d in found if d.layer == row.layer]
        assert row.planned_us == pytest.approx(sum(d.planned_us for d in mine))
        assert row.dense_us == pytest.approx(sum(d.dense_us for d in mine))
        assert row.limit_us is None and row.over_budget is False
        assert 0 < row.density <= 1
    timings = record.run
    for part in ("probe", "index", "route", "kernel"):
        total = sum(getattr(row, f"{part}_us") for row in record.layers) / 1e3
        assert getattr(timings, f"{part}_ms") == pytest.approx(total)


def test_a_fallback_event_stands_for_every_failed_test_that_led_on(routed, record, found):
    events = {(*unit_of(e), e.test): e for e in record.fallbacks}
    count = 0
    for d in found:
        for unit in range(8):
            b, h = divmod(unit, 4)
            tests = [t for t in d.certified.tests if t.unit == unit]
            for number, test in enumerate(tests, start=1):
                key = (b, d.layer, h, d.segment.index, number)
                following = tests[number].candidate if number < len(tests) else d.certified.choice[unit]
                if test.passed and following == test.candidate:
                    assert key not in events
                    continue
                count += 1
                event = events[key]
                # A head whose own certificate passed climbs with its layer only.
                assert event.scope == ("layer" if test.passed else "head")
                assert (event.from_candidate, event.to_candidate) == (test.candidate, following)
                assert event.kind == ("dense" if following == len(d.candidates) - 1 else "expand")
                config = routed.config
                tau = config.tau_layer if test.passed else config.least_head_mass
                assert event.lower_mass < event.tau == tau
                cost = d.scores.kernel_us[unit]
                assert event.paid_us == pytest.approx(cost[following] - cost[test.candidate])
                assert event.paid_us > 0
    assert count == len(events) > 0


def test_coverage_is_the_share_of_audited_units_at_or_above_their_bound(record):
    sparse = {unit_of(c) for c in record.choices if c.pattern != "dense"}
    assert {unit_of(a) for a in record.audits} == sparse
    assert record.run.coverage == np.mean([a.mass >= a.lower_mass for a in record.audits])
    assert record.run.max_error == max(a.max_error for a in record.audits)


def test_without_an_audit_nothing_is_claimed_about_errors(oracle):
    record = run(oracle, layers=1, audit_rows=None).trace.record()
    assert record.audits == ()
    assert record.run.coverage is record.run.mean_error is record.run.max_error is None
    assert record.run.top1_agreement is record.run.dense_ms is None


def test_a_calibration_adds_the_conformal_mass(oracle):
    buckets = (Bucket(1, 4_096, 100, {"0.95": 0.05}),)
    calibration = Calibration("prose", "prose", 0.6, 0.5, "demo", "0", "", {}, buckets, (), 0, {})
    record = run(oracle, layers=1, calibration=calibration, gate_threshold=None).trace.record()
    assert record.run.calibration == "prose" and record.run.gate_threshold == 0.6
    for choice in record.choices:
        wanted = None if choice.pattern == "dense" else pytest.approx(max(0.0, choice.gate_statistic - 0.05))
        assert choice.conformal_lower_mass == wanted


def test_an_uncalibrated_length_has_no_conformal_mass(oracle):
    buckets = (Bucket(100_000, 200_000, 100, {"0.95": 0.05}),)
    calibration = Calibration("prose", "prose", 0.6, 0.5, "demo", "0", "", {}, buckets, (), 0, {})
    record = run(oracle, layers=1, calibration=calibration, gate_threshold=None).trace.record()
    assert {choice.conformal_lower_mass for choice in record.choices} == {None}


def test_a_gate_beside_a_calibration_is_refused(oracle):
    calibration = Calibration("prose", "prose", 0.6, 0.5, "demo", "0", "", {}, (), (), 0, {})
    with pytest.raises(
        ConfigError, match=r"gate_threshold 0\.84 contradicts calibration 'prose', which froze 0\.6"
    ):
        run(oracle, layers=1, calibration=calibration, gate_threshold=0.84)


def test_a_limit_is_recorded_per_layer_and_its_overrun_counted(oracle):
    budget = LatencyBudget(0.2, "fraction")
    record = run(oracle, policy="budgeted", budget=budget, tau=0.98, gate_threshold=0.99).trace.record()
    assert record.run.budget == "0.2"
    for row in record.layers:
        assert row.limit_us == pytest.approx(0.2 * row.dense_us)
        assert row.over_budget == (row.planned_us > row.limit_us * (1 + 1e-9))
    assert record.run.over_budget_layers == sum(row.over_budget for row in record.layers) > 0


def test_heatmap_rows_are_sorted_read_back_and_leave_the_certificate_out(record):
    for picture in record.probes:
        positions = np.frombuffer(picture.positions, "<i4")
        kinds = np.frombuffer(picture.kinds, np.uint8)
        mass = np.frombuffer(picture.mass, "<f2").reshape(picture.rows, picture.columns)
        assert len(positions) == len(kinds) == picture.rows
        assert (np.diff(positions) >= 0).all()
        assert CERTIFICATE not in kinds
        assert (mass >= 0).all() and (mass.astype(float).sum(1) <= 1.01).all()


@pytest.mark.parametrize("share", [2, 5, 30])
def test_large_pictures_are_thinned_and_pooled_until_the_run_fits(routed, record, monkeypatch, share):
    def size(run):
        return sum(len(p.mass) + len(p.masks) for p in run.probes)

    monkeypatch.setattr(to_rows, "PROBE_BYTES", size(record) // share)
    small = routed.trace.record()
    assert size(record) // share // 4 < size(small) <= size(record) // share
    assert all(p.pool > 1 or p.rows < q.rows for p, q in zip(small.probes, record.probes, strict=True))
    for picture in small.probes:
        pairs = -(-len(families.names()) // 2)
        assert len(picture.masks) == pairs * picture.rows * picture.mask_columns


def test_what_the_caller_knows_about_the_run_is_kept(routed):
    info = RunInfo(model="demo", prompt_name="a.txt", domain="prose", total_ms=12.5, dense_ms=20.0)
    run = routed.trace.record(info).run
    assert (run.model, run.prompt_name, run.domain, run.total_ms, run.dense_ms) == (
        "demo",
        "a.txt",
        "prose",
        12.5,
        20.0,
    )


def test_before_the_first_prompt_there_is_nothing(oracle):
    trace = RoutingSession(oracle.SMALL, profile=oracle.PROFILE).trace
    assert trace.decisions == () and trace.timings["total_ms"] == 0
    with pytest.raises(ValueError, match="no prompt has been prefilled"):
        trace.record()


def test_an_unrouted_prompt_is_recorded_as_dense_ran_untouched(oracle):
    routed = RoutingSession(replace(oracle.SMALL, break_even_tokens=10_000), profile=oracle.PROFILE)
    x = oracle.draw_inputs(0)
    routed.attend(x, layer=0)
    run = routed.trace.record().run
    assert not run.routed and run.units == 0
    assert run.density is run.coverage is None
