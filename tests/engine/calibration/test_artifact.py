"""The calibration artifact: delta_q's quantile and its promise, the stamp, and files that are refused. No GPU."""

import hashlib
import json
import math
from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine import paths
from routesparse.engine.calibration.artifact import (
    PER_HEAD_ONLY,
    PRICED_ONLY,
    RISK_ONLY,
    STAMPED,
    Bucket,
    Calibration,
    CostModel,
    conformal_delta,
    known,
    load_calibration,
    stamp_of,
)
from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.method import policy
from routesparse.engine.method.families import library_hash
from routesparse.engine.method.latency import LatencyProfile
from tests.engine.test_config import CHANGES

CONFIG = RouterConfig(policy="certified")
PRICED = RouterConfig(policy="priced")
BUNDLED = ("prose", "code", "dialog", "mixed", "robust")
CALIBRATION = Calibration(
    name="prose",
    domain="prose",
    gate_threshold=0.93,
    alpha=0.4,
    model="demo",
    model_revision="0123456789abcdef",
    library_hash=library_hash(),
    stamp=stamp_of(CONFIG),
    buckets=(
        Bucket(1_024, 4_096, 120, {"0.95": 0.02, "0.99": None}),
        Bucket(4_097, 16_384, 100, {"0.95": 0.03}),
    ),
    documents=("a" * 64,),
    seed=0,
    provenance={"device": "test"},
)


# delta_q.


@pytest.mark.parametrize(("confidence", "least"), [(0.95, 19), (0.99, 99), (0.9, 9)])
def test_too_few_prompts_promise_nothing(confidence, least):
    few = [np.array([0.001 * i]) for i in range(least - 1)]
    assert conformal_delta(few, confidence) == math.inf
    assert conformal_delta([*few, np.array([0.5])], confidence) == 0.5


def test_the_unit_is_the_prompt_however_many_heads_it_has():
    one = [np.array([0.1]) for _ in range(39)]
    chatty = [*one, np.full(10_000, 0.9)]
    # One prompt of forty: level .95 x 41/40 = .974 is still among the thirty-nine.
    assert conformal_delta(chatty, 0.95) == 0.1


def test_the_pooled_quantile_equals_a_weighted_count_by_hand():
    g = np.random.default_rng(3)
    residuals = [g.normal(0, 0.1, size) for size in g.integers(1, 30, 50)]
    level = 0.95 * 51 / 50
    points = sorted((float(r), 1 / (len(rs) * 50)) for rs in residuals for r in rs)

    def share_up_to(value):
        return sum(weight for point, weight in points if point <= value)

    wanted = min(point for point, _ in points if share_up_to(point) >= level - 1e-12)
    assert conformal_delta(residuals, 0.95) == max(0.0, wanted)


def test_delta_is_never_negative_and_prompts_without_sparse_units_do_not_count():
    assert conformal_delta([np.array([-0.2])] * 30, 0.95) == 0.0
    assert conformal_delta([np.array([0.1])] * 18 + [np.array([])] * 10, 0.95) == math.inf
    assert conformal_delta([], 0.95) == math.inf


# The artifact.


@pytest.mark.parametrize(
    ("tokens", "confidence", "delta"),
    [
        *((1_023, 0.95, math.inf), (1_024, 0.95, 0.02), (4_096, 0.95, 0.02), (4_097, 0.95, 0.03)),
        *((16_385, 0.95, math.inf), (2_000, 0.9, math.inf), (2_000, 0.99, math.inf)),
    ],
)
def test_delta_is_that_of_the_lengths_bucket_and_infinite_outside_of_what_was_calibrated(
    tokens, confidence, delta
):
    assert CALIBRATION.delta(tokens, confidence) == delta


@pytest.mark.parametrize(
    ("costs", "told"),
    [
        ({"dense_tile_us": 15.0}, None),
        ({"row_us": 900.0, "column_us": 3.0}, None),
        ({"dense_tile_us": 21.0}, "a dense tile costs 1.00 sparse tiles, profile p says 2.10"),
        ({"dense_tile_us": 4.0}, "a dense tile costs 1.00 sparse tiles, profile p says 0.40"),
        ({"backend": "triton"}, "cheapest candidate for the torch kernel, this run uses triton"),
    ],
    ids=["near", "rows-and-columns", "dear", "cheap", "kernel"],
)
def test_another_idea_of_cheapest_is_told(costs, told):
    made_with = CostModel("p", "torch", 1.0, 0.1, 1.0)
    profile = LatencyProfile("p", "d", "torch", "float32", 64, 2, 1, 128, 64, 10, 10, 1, 0, 10, 0, 0, 0, 0)
    found = replace(CALIBRATION, cost_model=made_with).cost_mismatch(replace(profile, **costs))
    assert found is None if told is None else told in found
    assert CALIBRATION.cost_mismatch(replace(profile, **costs)) is None


@pytest.mark.parametrize(
    ("change", "revision", "dtype", "told"),
    [
        ({}, "feed", None, r"made for model 'demo' revision 0123.*has revision feed"),
        ({}, "0123456789abcdef", "bfloat16", r"made in float32, this model runs in bfloat16.*--force"),
        (
            {"library_hash": "old"},
            "0123456789abcdef",
            None,
            "made with pattern library old, this version has",
        ),
    ],
    ids=["model", "dtype", "library"],
)
def test_another_model_dtype_or_library_is_refused(change, revision, dtype, told):
    CALIBRATION.check("0123456789abcdef", CONFIG, "float32")
    with pytest.raises(CalibrationError, match=told):
        replace(CALIBRATION, **change).check(revision, CONFIG, dtype)


def test_documents_in_both_folds_or_in_a_test_set_are_found():
    def fold(*shas):
        return {"documents": [{"name": "n", "sha256": sha, "prompts": 1} for sha in shas]}

    calibration = replace(
        CALIBRATION, documents=("a", "b", "c"), folds={"A": fold("a", "b"), "B": fold("b", "c")}
    )
    assert calibration.overlap() == ["b"]
    assert CALIBRATION.overlap() == []


@pytest.mark.parametrize("name", STAMPED)
def test_a_run_that_differs_in_a_stamped_value_is_refused_by_its_name(name):
    """A policy other than "certified" needs a budget, and eq. 6 runs under one only: there both have the same."""
    budget = LatencyBudget(0.5, "fraction") if name in ("policy", *RISK_ONLY) else None
    made = replace(PRICED if name in PRICED_ONLY else CONFIG, budget=budget)
    other = replace(made, **{name: CHANGES[name]})
    was, now = made.to_dict()[name], other.to_dict()[name]
    calibration = replace(CALIBRATION, stamp=stamp_of(made))
    with pytest.raises(CalibrationError, match=f"made with {name} {was!r}, this run has {now!r}"):
        calibration.check("0123456789abcdef", other)


@pytest.mark.parametrize("name", RISK_ONLY)
def test_what_only_the_risk_reads_may_differ_where_the_gate_alone_chooses(name):
    CALIBRATION.check("0123456789abcdef", replace(CONFIG, **{name: CHANGES[name]}))


@pytest.mark.parametrize(("config", "names"), [(CONFIG, PRICED_ONLY), (PRICED, PER_HEAD_ONLY)])
def test_what_the_policy_does_not_read_may_differ(config, names):
    calibration = replace(CALIBRATION, stamp=stamp_of(config))
    calibration.check("0123456789abcdef", replace(config, **{name: CHANGES[name] for name in names}))
    lacking = {name: value for name, value in calibration.stamp.items() if name not in names}
    replace(calibration, stamp=lacking).check("0123456789abcdef", config)


def test_a_calibration_under_one_price_has_no_lambda_and_fits_no_other_policy(tmp_path):
    """Every unit's own lambda follows from the price, so the file holds null; elsewhere null means nothing."""
    made = replace(CALIBRATION, gate_threshold=None, stamp=stamp_of(PRICED))
    assert load_calibration(str(made.save(tmp_path))) == made
    with pytest.raises(CalibrationError, match="made with policy 'priced', this run has 'certified'"):
        made.check("0123456789abcdef", CONFIG)
    for wrong, wanted in (
        (replace(made, gate_threshold=0.9), "null under the policy 'priced'"),
        (replace(CALIBRATION, gate_threshold=None), "a number under the policy 'certified'"),
    ):
        with pytest.raises(CalibrationError, match=wanted):
            load_calibration(str(wrong.save(tmp_path)))


@pytest.mark.parametrize("name", sorted(policy.constants()))
def test_a_calibration_made_with_another_constant_is_refused_by_its_name(name):
    """The solver's constants count only where eq. 6 may run."""
    config = replace(CONFIG, budget=LatencyBudget(0.5, "fraction"))
    calibration = replace(CALIBRATION, stamp=stamp_of(config) | {name: 7.5})
    with pytest.raises(CalibrationError, match=f"made with {name} 7.5, .*; calibrate again"):
        calibration.check("0123456789abcdef", config)


def test_solver_constants_do_not_matter_where_the_gate_rule_alone_chooses_but_a_missing_value_does():
    stamp = CALIBRATION.stamp | dict.fromkeys(policy.solver_constants(), 7.5)
    replace(CALIBRATION, stamp=stamp).check("0123456789abcdef", CONFIG)
    del stamp["tail_tokens"]
    with pytest.raises(CalibrationError, match="made with tail_tokens None"):
        replace(CALIBRATION, stamp=stamp).check("0123456789abcdef", CONFIG)


def test_a_calibration_survives_its_file_with_the_older_name_of_lambda_too(tmp_path):
    path = CALIBRATION.save(tmp_path)
    assert load_calibration(str(path)) == CALIBRATION
    path.write_text(path.read_text().replace('"gate_threshold"', '"gate"'))
    assert load_calibration(str(path)) == CALIBRATION


@pytest.mark.usefixtures("home")
def test_a_calibration_made_on_this_machine_is_found_after_the_bundled_ones():
    bundled = load_calibration("prose")
    for name in ("mine", "prose"):
        replace(CALIBRATION, name=name).save(paths.calibrations())
    assert load_calibration("mine").gate_threshold == 0.93 and load_calibration("prose") == bundled
    assert known() == sorted({"mine", *BUNDLED})


@pytest.mark.usefixtures("home")
@pytest.mark.parametrize("name", ["novel", "../prose", "", "/nowhere/x.json", "no\0name", "x" * 300])
def test_an_unknown_name_is_refused_with_the_known_ones(name):
    with pytest.raises(
        CalibrationError, match=r"bundled ones: .*prose.*; a path must end in \.json|can't be read"
    ):
        load_calibration(name)


@pytest.mark.parametrize(
    ("schema", "told"),
    [(9, "has schema 9; this version reads 2; upgrade"), (1, "has schema 1; .*; calibrate again")],
)
def test_a_file_of_another_version_is_refused_and_says_what_to_do(tmp_path, schema, told):
    path = CALIBRATION.save(tmp_path)
    path.write_text(json.dumps({**json.loads(path.read_text()), "schema": schema}))
    with pytest.raises(CalibrationError, match=told):
        load_calibration(str(path))


# What ships.


@pytest.mark.parametrize("name", BUNDLED)
def test_a_bundled_calibration_fits_the_default_configuration_and_the_bundled_profile(name):
    calibration = load_calibration(name)
    calibration.check(calibration.model_revision, RouterConfig(), "float32")
    profile = LatencyProfile.load(paths.DATA / "profiles" / f"{calibration.cost_model.profile}.json")
    assert calibration.cost_mismatch(profile) is None
    for bucket in calibration.buckets:
        assert bucket.prompts >= 19 and 0 <= bucket.deltas["0.95"] < 0.05
    assert calibration.predictor is not None and calibration.drift is not None
    assert calibration.overlap() == []


@pytest.mark.parametrize("name", BUNDLED)
def test_no_document_of_a_bundled_calibration_is_in_a_test_set(name):
    data = paths.REPOSITORY.parent / "shared" / "data"
    if not data.is_dir():
        pytest.skip("the test documents are not in ../shared/data")
    tests = [p for d in ("prose", "code", "dialog", "docs") for p in (data / d / "test").glob("*.txt")]
    assert len(tests) > 50
    seen = {hashlib.sha256(p.read_bytes()).hexdigest() for p in tests}
    assert not seen & {*load_calibration(name).documents}


def test_robust_is_at_least_as_careful_as_each_of_its_domains():
    robust = load_calibration("robust")
    assert robust.parts == ("code", "dialog", "prose")
    for part in robust.parts:
        for bucket, mine in zip(robust.buckets, load_calibration(part).buckets, strict=True):
            assert bucket.deltas["0.95"] >= mine.deltas["0.95"]


@pytest.mark.parametrize(
    "kind", ["pipe", "device", "folder", "cut", "empty", "list", "no schema", "schema as text"]
)
def test_whatever_a_file_of_that_name_holds_is_one_error(tmp_path, no_plain_file, kind):
    path = CALIBRATION.save(tmp_path)
    good = path.read_text()
    contents = {
        "cut": good[: len(good) // 2],
        "empty": "",
        "list": "[]",
        "no schema": good.replace('"schema": 2,', ""),
        "schema as text": good.replace('"schema": 2,', '"schema": "two",'),
    }
    path.unlink()
    if kind in contents:
        assert contents[kind] != good
        path.write_text(contents[kind])
    else:
        no_plain_file(path, kind)
    with pytest.raises(CalibrationError, match=r"can't be read|is corrupt"):
        load_calibration(str(path))
