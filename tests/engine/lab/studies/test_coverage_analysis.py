"""The trust study's analysis on units with known statistics. CPU only, no model."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from routesparse.engine import paths
from routesparse.engine.calibration.artifact import STAMPED, load_calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, InputError, ProfileError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage import analyse, certificates, page
from routesparse.engine.lab.studies.coverage.attention_work import decompose
from routesparse.engine.lab.studies.coverage.controls import Candidates, _of_domain, controls
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split

PROFILE = LatencyProfile("p", "d", "torch", "float32", 64, 2, 1, 128, 64, 160, 10, 0, 0, 8, 0, 0, 0, 0)
TOKENS = 8_192


def units(windows, seed, noise=0.01, aligned=0.03, per_window=40, tokens=TOKENS, domain="prose"):
    """Twenty candidates a unit with true masses up to .99, dearer ones heavier; g is off by ``noise``."""
    rng = np.random.default_rng(seed)
    count = windows * per_window
    true = np.sort(rng.uniform(0.6, 0.99, (count, 20)), axis=1)
    ones = np.ones((count, 1))
    true_all = np.hstack([true, ones])
    mass = np.clip(np.hstack([true + rng.normal(0, noise, true.shape), ones]), 0, 1)
    flat = np.clip(np.hstack([true + aligned + rng.normal(0, noise, true.shape), ones]), 0, 1)
    cost = np.hstack([np.tile(np.linspace(20, 90, 20), (count, 1)), 100 * ones])
    chosen = Candidates(
        frame := pd.DataFrame(
            {
                "number": np.repeat(np.arange(windows), per_window) + 1_000 * seed,
                "cluster": np.repeat([f"c{i % 9}" for i in range(windows)], per_window),
                "domain": domain,
                "tokens": tokens,
                "segment": 0,
                "layer": 0,
                "dense": 20,
                "fallback": 0,
                "entropy": 1.0,
                "density": 0.3,
                "mass_all": mass.tolist(),
                "recent_all": ones.repeat(21, 1).tolist(),
                "true_all": true_all.tolist(),
                "aligned_all": flat.tolist(),
                "kernel_us_all": cost.tolist(),
                "priced": 14,
            }
        )
    ).choose(mass)
    rows = np.arange(count)
    frame["first"] = frame["chosen"] = chosen
    frame["is_sparse"] = chosen < 20
    frame["true_mass"] = true_all[rows, chosen]
    frame["residual"] = (mass - true_all)[rows, chosen]
    frame["lower"], frame["aligned_lower"] = frame["true_mass"] - 0.02, frame["true_mass"] + 0.01
    frame["omitted_by_offset"] = [[0.1, 0.2]] * count
    return frame


def test_what_is_done_rightly_covers_and_the_controls_do_not():
    found = _of_domain(Candidates(units(60, 1)), Candidates(units(120, 2)))
    routed = found["routed_choice"]
    assert 0.93 <= routed["selected"]["mean"] <= 0.985 and routed["selected"]["prompts"] == 60
    assert routed["selected"]["low"] < routed["selected"]["mean"] < routed["selected"]["high"]
    assert found["aligned_rows"]["mean"] < 0.2
    assert found["aligned_rows"]["in_prompt"]["mean"] == 0.0
    assert found["aligned_rows"]["in_prompt_random_rows"]["mean"] == 1.0
    assert found["aligned_rows"]["omitted_by_offset"] == pytest.approx([0.1, 0.2])
    assert found["replayed"] == 1.0
    assert {round(row["sd"], 3) for row in found["spread_by_mass"] if row["to"] < 0.97} <= {
        0.009,
        0.01,
        0.011,
    }


def test_records_that_do_not_give_the_choices_again_are_refused():
    broken = units(60, 1)
    broken.loc[:99, "first"] = 0
    with pytest.raises(InputError, match="follow from the records"):
        _of_domain(Candidates(broken), Candidates(units(120, 2)))


def test_aligned_rows_that_do_not_flatter_lose_nothing():
    """The control fails because of the rows' place, not because of how it is computed."""
    found = _of_domain(Candidates(units(60, 1, aligned=0.0)), Candidates(units(120, 2)))
    assert found["aligned_rows"]["mean"] > 0.93


def test_every_calibration_meets_every_domain_and_short_prompts_stay_out():
    domains = ("prose", "code", "dialog")
    tests = pd.concat([units(20, 3 + i, domain=d) for i, d in enumerate(domains)])
    tests = pd.concat([tests, units(20, 9, tokens=4_000)])
    folds = pd.concat([units(40, 6 + i, domain=d) for i, d in enumerate(domains)])
    made = {name: SimpleNamespace(delta=lambda tokens, q: 0.02) for name in ("prose", "code")}
    found = controls(tests.reset_index(drop=True), folds.reset_index(drop=True), made)
    assert set(found["across"]["prose"]) == set(domains)
    assert found["across"]["code"]["prose"]["prompts"] == 20


def test_a_unit_is_dense_because_dense_costs_less():
    segment = split(TOKENS, TOKENS, RouterConfig(), 0)[0]
    full = segment.causal_tiles()
    costs = [float(PROFILE.sparse_us(segment, np.array(share * full), np.zeros(()))) for share in (0.1, 0.7)]
    dense = PROFILE.dense_us(segment)
    assert costs[0] < dense < costs[1]
    # Masses of the two sparse candidates as the probe saw them, the one at the price, what was chosen.
    rows = [([0.95, 0.99], 0, 0), ([0.50, 0.99], 1, 2), ([0.50, 0.60], 1, 2), ([0.91, 0.93], 1, 2)]
    frame = pd.DataFrame(
        {
            "number": 0, "tokens": TOKENS, "segment": 0, "layer": [0, 0, 1, 1], "fallback": 0, "dense": 2,
            "entropy": [1.0, 3.0, 3.0, 3.0], "density": [0.1, 1.0, 1.0, 1.0], "chosen": [c for *_, c in rows],
            "mass_all": [[*m, 1.0] for m, *_ in rows], "recent_all": [[1.0] * 3] * 4,
            "true_all": [*([*m, 1.0] for m, *_ in rows[:3]), [0.97, 0.93, 1.0]], "aligned_all": [[1.0] * 3] * 4,
            "kernel_us_all": [[*costs, dense]] * 4, "is_sparse": [c < 2 for *_, c in rows],
            "priced": [p for _, p, _ in rows],
        }
    )  # fmt: skip
    found = decompose(frame, PROFILE)
    assert (found["sparse"], found["dense_cheaper_than_sparse"]) == (0.25, 0.75)
    assert found["work"] == pytest.approx(3.1 / 4)
    assert found["dense_by_router_by_layer"] == {"0": 0.5, "1": 1.0}
    assert found["without_fixed_costs"] == pytest.approx((0.1 + 0.7 + 0.7 + 0.7) / 4)
    # By the truth the last unit's cheapest candidate holds more than the one at the price.
    assert found["by_true_mass"] == pytest.approx((0.1 + 0.7 + 0.7 + 0.1) / 4)
    assert found["entropy"] == {"sparse": 1.0, "dense_by_router": 3.0}


def priced_units():
    """Two windows of one layer of two heads: the first head takes the floor at the price, the other is dense."""
    return pd.DataFrame(
        {
            "number": [0, 0, 1, 1], "cluster": ["a", "a", "b", "b"], "layer": 0, "segment": 0, "dense": 2,
            "priced": 1, "chosen": [1, 2, 1, 2], "is_sparse": [True, False, True, False],
            "true_mass": [0.72, 1.0, 0.3, 1.0],
            "lower": [0.6, np.nan, 0.5, np.nan], "bernstein": 0.2,
            "rung_lower": [[0.6, 0.7], [], [0.5], []], "rung_true": [[0.72, 0.8], [], [0.3], []],
            "layer_lower": [0.8, 0.8, 0.7, 0.7], "layer_true": [0.86, 0.86, 0.65, 0.65], "layer_rung": [0, 0, 1, 1],
            "layer_bounds": [[0.8, 0.85, 0.99]] * 2 + [[0.6, 0.7, 0.99]] * 2,
            "layer_rung_true": [[0.86, 0.9, 1.0]] * 2 + [[0.65, 0.65, 1.0]] * 2,
        }
    )  # fmt: skip


def test_a_layer_counts_once_and_a_rung_of_dense_heads_is_no_test():
    config = RouterConfig(policy="priced", tau_layer=0.7, tau_head=0.4)
    found = certificates.in_prompt_layers(priced_units(), config)
    assert (found["layers"], found["units"], found["mean"], found["raised"]) == (2, 2, 0.5, 0.5)
    assert (found["tests"], found["tests_above_the_truth"], found["false_passes"]) == (4, 1, 1)
    assert found["least_certified"] == 0.7 and found["median_certified"] == 0.75
    assert found["median_gap"] == pytest.approx(0.005)


def test_every_rung_of_a_head_is_a_test_under_one_price():
    found = certificates.in_prompt(priced_units(), RouterConfig(policy="priced", tau_head=0.4))
    assert (found["tests"], found["tests_above_the_truth"], found["false_passes"]) == (3, 1, 1)
    assert found["mean"] == 0.5 and found["least_certified"] == 0.5 and found["least_mass"] == 0.3


def test_a_units_lambda_under_one_price_follows_the_statistic():
    """A router that reads another statistic reads the floor at the price by it too."""
    frame = pd.DataFrame(
        {
            "mass_all": [[0.6, 0.7, 1.0]], "recent_all": [[1.0, 1.0, 1.0]], "aligned_all": [[0.9, 0.8, 1.0]],
            "true_all": [[0.6, 0.7, 1.0]], "kernel_us_all": [[1.0, 2.0, 9.0]], "dense": [2], "priced": [1],
        }
    )  # fmt: skip
    candidates = Candidates(frame)
    assert candidates.choose(candidates.gate_statistic).tolist() == [1]
    assert candidates.choose(candidates.aligned).tolist() == [0]


def test_an_alarm_rate_comes_with_an_interval_over_clusters_where_there_are_eight():
    """Sixteen documents are pieces of eight projects, whose windows alarm together."""
    frame = pd.DataFrame(
        {
            "document": range(16),
            "cluster": np.repeat(range(8), 2),
            "alarm": [True] * 4 + [False] * 12,
            "distance": 1.0,
        }
    )
    told = analyse._alarms(frame)
    assert (told["windows"], told["documents"], told["clusters"], told["alarms"]) == (16, 16, 8, 4)
    low, high = told["interval"]
    # Two of eight clusters: the interval's ends are eighths, as no interval over documents would have them.
    assert told["rate"] == 0.25 and (low, high) == (0.0, 0.625)
    few = analyse._alarms(frame[frame["cluster"] < 7])
    assert few["interval"] is None and few["clusters"] == 7


@pytest.fixture
def measured():
    """The windows that the shipped calibrations were made from, as far as the check looks at them."""
    made = load_calibration("prose")
    windows = pd.DataFrame(
        {
            "profile": [made.cost_model.profile],
            "revision": [made.model_revision],
            "dtype": [made.dtype],
            "document_sha256": ["a test document"],
        }
    )
    values = {name: made.stamp[name] for name in STAMPED if name in made.stamp}
    config = RouterConfig.from_dict(values | {"gate_threshold": made.gate_threshold})
    found = SimpleNamespace(config=config, part=lambda name: (None, windows))
    return found, replace(PROFILE, name=made.cost_model.profile)


def test_calibrations_of_the_measured_windows_pass(measured):
    windows, profile = measured
    analyse.check(windows, {name: load_calibration(name) for name in ("prose", "mixed", "robust")}, profile)


def test_calibrations_of_another_policy_model_or_profile_are_refused(measured):
    windows, profile = measured
    made = load_calibration("prose")
    for other in (
        replace(made, stamp=made.stamp | {"policy": "strict"}),
        replace(made, model_revision="0"),
        replace(made, dtype="bfloat16"),
    ):
        with pytest.raises(CalibrationError, match="ship calibrations from these windows"):
            analyse.check(windows, {"prose": other}, profile)
    with pytest.raises(CalibrationError, match="shares a document"):
        analyse.check(windows, {"prose": replace(made, documents=("a test document",))}, profile)
    with pytest.raises(ProfileError, match="measured with profile"):
        analyse.check(windows, {"prose": made}, PROFILE)


def test_shipped_calibrations_have_a_hundred_prompts_a_domain_and_separate_folds():
    for name in ("prose", "code", "dialog", "mixed", "robust"):
        made = load_calibration(name)
        assert made.buckets[0].prompts >= 100 and made.overlap() == []
        assert made.provenance["measured"][0]["devices"]["cpu"]


def test_a_recorded_command_keeps_no_folder_of_this_machine():
    told = study.portable("python -m a.b --data /some/where/data --out=/tmp/x/units --plan .carry/p.gz --n 3")
    assert told == "python -m a.b --data data --out=units --plan .carry/p.gz --n 3"
    assert study.portable("--data ../shared/data --domain a/b") == "--data ../shared/data --domain a/b"


def test_the_page_says_what_the_result_file_says():
    assert (paths.DATA / "results" / "TRUST.md").read_text() == page.page()
