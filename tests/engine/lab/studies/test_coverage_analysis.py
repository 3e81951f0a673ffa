"""The trust study's analysis on units with known statistics. CPU only, no model."""

from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from routesparse.engine.calibration.artifact import STAMPED, load_calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, ProfileError
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage import analyse, certificates
from routesparse.engine.method.latency import LatencyProfile

PROFILE = LatencyProfile("p", "d", "torch", "float32", 64, 2, 1, 128, 64, 160, 10, 0, 0, 8, 0, 0, 0, 0)


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


def test_a_recorded_command_keeps_no_folder_of_this_machine():
    told = study.portable("python -m a.b --data /some/where/data --out=/tmp/x/units --plan .carry/p.gz --n 3")
    assert told == "python -m a.b --data data --out=units --plan .carry/p.gz --n 3"
    assert study.portable("--data ../shared/data --domain a/b") == "--data ../shared/data --domain a/b"
