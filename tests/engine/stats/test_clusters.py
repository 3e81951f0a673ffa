"""Intervals resample clusters. No GPU."""

import numpy as np

from routesparse.engine.stats.clusters import clustered_interval


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
