"""Two runs side by side, and the router replayed under another calibration. numpy and pandas only."""

from __future__ import annotations

import math
from dataclasses import replace
from types import SimpleNamespace

import numpy as np
import pandas as pd
import pytest

from routesparse.engine.calibration.replay import replay
from routesparse.engine.errors import InputError
from routesparse.engine.method import families
from routesparse.engine.stats import comparison
from routesparse.engine.stats.coverage import clustered_interval, difference_interval


@pytest.fixture(scope="module")
def record(factory):
    return factory.make_record(layers=4, heads=4, tokens=4096, probe_columns=32, hardness=0.9)


def choices(record) -> pd.DataFrame:
    audits = {(a.layer, a.head, a.segment): a for a in record.audits}
    rows = []
    for c in record.choices:
        audit = audits.get((c.layer, c.head, c.segment))
        rows.append(
            {
                **{name: getattr(c, name) for name in comparison.UNIT},
                **{name: getattr(c, name) for name in comparison.METRICS if not name.startswith("audited")},
                "pattern": c.pattern,
                "budget": c.budget,
                "audited_mass": audit.mass if audit else None,
                "audited_error": audit.mean_error if audit else None,
            }
        )
    return pd.DataFrame(rows)


def candidates(record) -> pd.DataFrame:
    return pd.DataFrame([vars(c) for c in record.candidates]).sort_values(
        [*comparison.UNIT, "candidate"], ignore_index=True
    )


def calibration(gate: float, delta: float = 0.02):
    return SimpleNamespace(
        name="other",
        gate_threshold=gate,
        alpha=0.5,
        delta=lambda tokens, confidence: delta,
        covers=lambda pattern: True,
    )


def test_a_run_against_itself_has_changed_nowhere(record):
    rows = choices(record)
    pairs = comparison.pair(rows, rows)
    assert len(pairs) == len(rows) and not pairs["changed"].any()
    table = comparison.transitions(pairs, families.in_order()).to_numpy()
    assert table.trace() == table.sum() == len(rows)
    found = comparison.differences(rows, rows, paired=True)
    assert len(found) and not found[["low", "difference", "high"]].to_numpy().any()


def test_more_of_the_same_family_counts_as_changed_and_another_name_of_a_budget_does_not(record):
    rows = choices(record)
    assert not comparison.pair(rows, rows.assign(budget=rows["budget"] + ", as of 2"))["changed"].any()
    pairs = comparison.pair(rows, rows.assign(density=rows["density"] * 1.01))
    assert pairs["changed"].all()
    assert comparison.transitions(pairs, families.in_order()).to_numpy().trace() == len(rows)


def test_transitions_count_from_the_baseline(record):
    rows = choices(record)
    table = comparison.transitions(comparison.pair(rows, rows.assign(pattern="dense")), families.in_order())
    assert table["dense"].sum() == len(rows)
    assert table.loc["vertical_slash", "dense"] == (rows["pattern"] == "vertical_slash").sum()


def test_a_pattern_that_is_not_named_is_an_error_and_not_left_out(record):
    pairs = comparison.pair(choices(record), choices(record).assign(pattern="unknown"))
    with pytest.raises(ValueError, match="units chose unknown, not among a_shape"):
        comparison.transitions(pairs, families.in_order())
    known = families.in_order(pairs["pattern_b"])
    assert comparison.transitions(pairs, known)["unknown"].sum() == len(pairs)


def test_pairing_narrows_the_interval_of_a_small_shift(record):
    rows = choices(record)
    noise = np.random.default_rng(0).normal(0, 0.0005, len(rows))
    other = rows.assign(gate_statistic=rows["gate_statistic"] - 0.01 + noise)
    paired, unpaired = (
        comparison.differences(rows, other, paired).set_index("metric").loc["gate_statistic"]
        for paired in (True, False)
    )
    assert paired.high < 0 and paired.low == pytest.approx(-0.01, abs=0.002)
    assert unpaired.high - unpaired.low > 2 * (paired.high - paired.low)
    assert unpaired.difference == pytest.approx(paired.difference)


def test_metrics_that_one_side_lacks_are_left_out(record):
    rows = choices(record)
    bare = rows.assign(audited_mass=None, audited_error=None)
    for paired in (True, False):
        names = set(comparison.differences(rows, bare, paired)["metric"])
        assert "audited_mass" not in names and "gate_statistic" in names


def test_unpaired_interval_covers_the_difference_of_means():
    random = np.random.default_rng(1)
    hits = 0
    for seed in range(200):
        before, after = random.normal(0, 1, 60), random.normal(0.5, 1, 40)
        low, high = difference_interval(before, range(60), after, range(40), seed, 400)
        hits += low <= 0.5 <= high
    assert 0.9 <= hits / 200 <= 0.99


def test_the_clustered_interval_is_wider_than_one_that_ignores_clusters():
    random = np.random.default_rng(2)
    cluster = np.repeat(np.arange(10), 20)
    values = random.normal(0, 1, 10)[cluster] + random.normal(0, 0.1, 200)
    low, high = clustered_interval(values, cluster)
    plain_low, plain_high = clustered_interval(values, np.arange(200))
    assert high - low > 2 * (plain_high - plain_low)


def test_entropy_is_zero_for_one_pattern_and_one_bit_for_two_domains_that_differ():
    counts = pd.DataFrame(
        [
            ("prose", 0, 0, "dense", 9),
            ("code", 0, 0, "dense", 1),
            ("prose", 0, 1, "dense", 5),
            ("code", 0, 1, "a_shape", 500),
        ],
        columns=["domain", "layer", "head", "pattern", "units"],
    )
    rows = comparison.choice_entropy(counts)
    assert rows["bits"].tolist() == [0.0, pytest.approx(1.0)], "domains weigh the same whatever their size"
    assert not np.signbit(rows["bits"]).any(), "a page would print -0.0"
    assert rows["domains"].tolist() == [2, 2]


def test_settings_differ_only_where_they_do(record):
    one = record.run
    other = replace(one, tau=0.8, config_json=one.config_json.replace('"tau": 0.9', '"tau": 0.8'))
    table = comparison.settings_table({"a": comparison.settings(one), "b": comparison.settings(other)})
    assert table.loc[~table["equal"], "setting"].tolist() == ["tau"]


def test_replay_with_the_runs_own_gate_is_the_routers_choice(record):
    """Where no certificate failed, the recorded choice is the router's."""
    rows = replay(candidates(record), calibration(record.run.gate_threshold), 4096, 0.95)
    failed = {(f.layer, f.head, f.segment) for f in record.fallbacks}
    recorded = {(c.layer, c.head, c.segment): c.candidate for c in record.choices}
    for row in rows.itertuples():
        key = (row.layer, row.head, row.segment)
        if key not in failed:
            assert row.candidate == recorded[key]


def test_replay_with_a_higher_gate_keeps_more(record):
    rows = candidates(record)
    low, high = (replay(rows, calibration(gate), 4096, 0.95)["density"].mean() for gate in (0.85, 0.97))
    assert high > low
    assert (replay(rows, calibration(1.01), 4096, 0.95)["pattern"] == "dense").all()


def test_replayed_conformal_claim_is_g_minus_delta_and_missing_where_infinite(record):
    rows = replay(candidates(record), calibration(0.9, 0.02), 4096, 0.95)
    sparse = rows["pattern"] != "dense"
    assert np.allclose(rows.loc[sparse, "conformal_lower_mass"], rows.loc[sparse, "gate_statistic"] - 0.02)
    assert rows.loc[~sparse, "conformal_lower_mass"].isna().all()
    assert (
        replay(candidates(record), calibration(0.9, math.inf), 4096, 0.95)["conformal_lower_mass"]
        .isna()
        .all()
    )


def test_calibrations_under_one_price_change_the_claim_alone():
    """A unit takes its floor at the price, or what is cheaper and loses at most half as much; lambda is no number."""
    patterns = ["a_shape", *["floor"] * 7, "dense"]
    rows = pd.DataFrame(
        {
            "candidate": range(9), "pattern": patterns, "budget": "", "density": 0.1, "disagreement": 0.0,
            "mass": [0.91, 0.1, 0.2, 0.3, 0.7, 0.8, 0.85, 0.9, 1.0], "recent_mass": 1.0,
            "kernel_us": [3.0, 1, 2, 3, 4, 5, 6, 7, 20], "batch_index": 0, "layer": 0, "head": 0, "segment": 0,
        }
    )  # fmt: skip
    found = replay(rows, calibration(None, 0.02), 4096, 0.95)
    assert found["candidate"].tolist() == [0] and found["conformal_lower_mass"][0] == pytest.approx(0.89)
    rows.loc[0, "mass"] = 0.89
    assert replay(rows, calibration(None, 0.02), 4096, 0.95)["candidate"].tolist() == [5]
    with pytest.raises(InputError, match="no candidate at a price"):
        replay(rows.assign(pattern="a_shape"), calibration(None), 4096, 0.95)


def test_run_without_candidates_cannot_be_replayed(record):
    with pytest.raises(InputError, match="nothing can be replayed"):
        replay(candidates(record).iloc[:0], calibration(0.9), 4096, 0.95)
