"""Two runs side by side. numpy and pandas only."""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import pandas as pd
import pytest

from routesparse.engine.stats import comparison
from routesparse.engine.stats.clusters import clustered_interval, difference_interval


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


def test_a_run_against_itself_has_changed_nowhere(record):
    rows = choices(record)
    pairs = comparison.pair(rows, rows)
    assert len(pairs) == len(rows) and not pairs["changed"].any()
    found = comparison.differences(rows, rows, paired=True)
    assert len(found) and not found[["low", "difference", "high"]].to_numpy().any()


def test_more_of_the_same_family_counts_as_changed_and_another_name_of_a_budget_does_not(record):
    rows = choices(record)
    assert not comparison.pair(rows, rows.assign(budget=rows["budget"] + ", as of 2"))["changed"].any()
    pairs = comparison.pair(rows, rows.assign(density=rows["density"] * 1.01))
    assert pairs["changed"].all()


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


def test_settings_differ_only_where_they_do(record):
    one = record.run
    other = replace(one, tau=0.8, config_json=one.config_json.replace('"tau": 0.9', '"tau": 0.8'))
    table = comparison.settings_table({"a": comparison.settings(one), "b": comparison.settings(other)})
    assert table.loc[~table["equal"], "setting"].tolist() == ["tau"]
