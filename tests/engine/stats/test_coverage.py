"""Coverage statistics: the prompt counts once, intervals resample clusters. No GPU."""

import numpy as np
import pytest

from routesparse.engine.stats.coverage import clustered_interval, summarise


def test_a_prompt_counts_once_however_many_units_it_has():
    covered = [True] * 900 + [False]
    found = summarise(covered, ["a"] * 900 + ["b"], ["x"] * 900 + ["y"])
    assert (found.mean, found.minimum, found.prompts, found.clusters, found.units) == (0.5, 0.0, 2, 2, 901)
    assert found.sd == pytest.approx(np.std([1, 0], ddof=1))


def test_fewer_than_eight_clusters_have_no_interval():
    """Twenty windows of seven projects have none; with an eighth they have one."""
    window, project = np.arange(20), np.arange(20) % 7
    found = summarise(window > 2, window, project)
    assert (found.low, found.high, found.clusters) == (None, None, 7)
    project[-1] = 7
    found = summarise(window > 2, window, project)
    assert found.low < found.mean < found.high and found.clusters == 8


def test_no_unit_is_no_coverage():
    with pytest.raises(ValueError, match="at least one selected sparse unit"):
        summarise([], [], [])


def test_the_interval_is_over_documents_not_over_prompts():
    """Four documents of 50 windows that agree within themselves: as wide as four values, not as two hundred."""
    document = np.repeat(np.arange(4), 50)
    value = np.repeat([0.90, 0.95, 0.97, 1.0], 50)
    wide = np.subtract(*clustered_interval(value, document)[::-1])
    narrow = np.subtract(*clustered_interval(value, np.arange(200))[::-1])
    assert wide > 5 * narrow


def test_the_interval_covers_the_mean_of_clustered_draws():
    """30 documents of 5 windows, document effects: 95 % nominal; a percentile bootstrap loses a few points."""
    rng = np.random.default_rng(1)
    hits = 0
    for repeat in range(200):
        document = np.repeat(np.arange(30), 5)
        value = rng.normal(0, 1, 30)[document] + rng.normal(0, 0.3, 150)
        low, high = clustered_interval(value, document, seed=repeat, resamples=1_000)
        hits += low <= 0 <= high
    assert 0.88 <= hits / 200 <= 0.99
