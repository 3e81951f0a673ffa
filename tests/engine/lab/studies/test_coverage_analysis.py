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
from routesparse.engine.lab.studies.coverage import analyse
from routesparse.engine.method.latency import LatencyProfile

PROFILE = LatencyProfile("p", "d", "torch", "float32", 64, 2, 1, 128, 64, 160, 10, 0, 0, 8, 0, 0, 0, 0)


CONFIG = RouterConfig(policy="priced", tau_layer=0.7, tau_head=0.4)


def priced_units():
    """Two windows of one layer of two heads: the first head takes the floor at the price, the other is dense."""
    return pd.DataFrame(
        {
            "number": [0, 0, 1, 1], "cluster": ["a", "a", "b", "b"], "layer": 0, "segment": 0, "dense": 2,
            "domain": "prose", "length": 4_096, "tokens": 4_000, "pattern": ["floor", "dense"] * 2,
            "chosen": [1, 2, 1, 2], "is_sparse": [True, False, True, False], "fallback": [0, 2, 1, 0],
            "true_mass": [0.72, 1.0, 0.3, 1.0], "target": [0.7, 1.0, 0.4, 1.0],
            "gate_statistic": [0.75, 1.0, 0.45, 1.0],
            "lower": [0.6, np.nan, 0.5, np.nan], "bernstein": 0.2,
            "rung_lower": [[0.6, 0.7], [], [0.5], []], "rung_true": [[0.72, 0.8], [], [0.3], []],
            "layer_lower": [0.8, 0.8, 0.7, 0.7], "layer_true": [0.86, 0.86, 0.65, 0.65], "layer_rung": [0, 0, 1, 1],
            "layer_bounds": [[0.8, 0.85, 0.99]] * 2 + [[0.6, 0.7, 0.99]] * 2,
            "layer_rung_true": [[0.86, 0.9, 1.0]] * 2 + [[0.65, 0.65, 1.0]] * 2,
            "row_q_covered": [1.0, np.nan, 0.9, np.nan], "row_s_covered": [1.0, np.nan, 0.95, np.nan],
            "first_row_covered": [1.0, 1.0, 0.9, 1.0],
        }
    )  # fmt: skip


def told(calibrations=None):
    found = analyse.claims(priced_units(), calibrations or {}, CONFIG)
    return {row["claim"]: row for row in analyse.summaries(found, analyse.CELL)}


def test_a_layer_counts_once_and_a_rung_of_dense_heads_is_no_test():
    found = told()
    layer, rungs = found["layer"], found["layer, every rung"]
    assert (layer["units"], layer["mean"], layer["broken"]) == (2, 0.5, 1)
    assert (rungs["units"], rungs["broken"], found["layer, floor"]["broken"]) == (4, 1, 1)
    assert layer["least_promised"] == 0.7 and layer["median_promised"] == 0.75
    assert layer["median_gap"] == pytest.approx(0.005)


def test_a_window_holds_jointly_where_all_its_heads_do_and_sabotaged_bounds_stand_beside_them():
    units = priced_units().assign(
        lower_joint=0.2, lower_sabotaged=[0.8, np.nan, 0.2, np.nan], lower_reused=0.9
    )
    found = {row["claim"]: row for row in analyse.summaries(analyse.claims(units, {}, CONFIG), analyse.CELL)}
    joint = {name: found[f"all of a window jointly: {name}"] for name in analyse.JOINTLY}
    assert {name: (row["units"], row["broken"]) for name, row in joint.items()} == {
        "head": (2, 1), "head, Bonferroni": (2, 0), "layer": (2, 1)
    }  # fmt: skip
    broken = {name.split(": ")[1]: row["broken"] for name, row in found.items() if "sabotaged" in name}
    assert broken == {"error 0.2": 1, "rows that chose": 2}


def test_every_rung_of_a_head_is_a_test_under_one_price():
    found = told()
    head, rungs = found["head"], found["head, every rung"]
    assert (rungs["units"], rungs["broken"], found["head, floor"]["broken"]) == (3, 1, 1)
    assert head["mean"] == 0.5 and head["least_promised"] == 0.5 and head["least_true"] == 0.3
    assert found["row, at q"]["mean"] == pytest.approx(0.95) and found["row, first choice"]["units"] == 4


def test_a_calibration_promises_g_less_its_delta_where_it_has_one():
    deltas = {"wide": 0.1, "narrow": 0.04, "none": np.inf}
    found = told({k: SimpleNamespace(delta=lambda tokens, q, d=d: d) for k, d in deltas.items()})
    assert [found[f"conformal {name}"]["mean"] for name in ("wide", "narrow")] == [1.0, 0.0]
    assert found["conformal wide, mass"]["broken"] == 1 and "conformal none" not in found


def test_rates_come_with_an_interval_over_clusters_where_there_are_eight():
    """Sixteen documents are pieces of eight projects, whose windows alarm together."""
    frame = pd.DataFrame(
        {"document": range(16), "cluster": np.repeat(range(8), 2), "domain": "code", "length": 4_096}
    ).assign(alarm_code=[1.0] * 4 + [0.0] * 12, density=0.2, **dict.fromkeys(analyse.RATES, 0.0))
    alarms = analyse.rates(frame)[-1]
    assert (alarms["windows"], alarms["documents"], alarms["clusters"], alarms["mean"]) == (16, 16, 8, 0.25)
    # Two of eight clusters: the interval's ends are eighths, as no interval over documents would have them.
    assert alarms["interval"] == (0.0, 0.625)
    assert analyse.rates(frame[frame["cluster"] < 7])[-1]["interval"] is None


def test_a_window_s_row_holds_its_rates_and_the_share_of_each_promise_that_held(monkeypatch):
    units = priced_units().assign(entropy=0.0, local_band=0.0, agreement=0.0)
    windows = units.drop_duplicates("number").set_index("number", drop=False)
    windows = windows.assign(window=[7, 8], document="d", device="cpu", density=0.3)
    calibration = SimpleNamespace(
        delta=lambda tokens, q: 0.1,
        drift=SimpleNamespace(assess=lambda values, tokens: SimpleNamespace(alarm=True)),
    )
    found = analyse.claims(units, {"prose": calibration}, CONFIG)
    rows = analyse.per_window(units, windows, found, {"prose": calibration})
    assert rows["window"].tolist() == [7, 8] and rows["head"].tolist() == [1.0, 0.0]
    assert rows["dense_by_fallback"].tolist() == [0.5, 0.0] and rows["expanded"].tolist() == [0.0, 0.5]
    assert rows["sparse_units"].tolist() == [1, 1] and rows["alarm_prose"].tolist() == [1.0, 1.0]


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
