"""Intervals of means whose values resemble each other: whole clusters are resampled.

Windows of one document share an author, and documents that are pieces of one project as much. numpy only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence

import numpy as np

RESAMPLES = 10_000
FEWEST_CLUSTERS = 8  # a bootstrap over fewer is their range, not an interval


def clustered_interval(
    values: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | np.ndarray,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """95 % percentile interval of the mean of ``values``, resampling whole clusters with replacement."""
    means = resampled_means(values, clusters, np.random.default_rng(seed), resamples)
    low, high = np.quantile(means, [0.025, 0.975])
    return float(low), float(high)


def difference_interval(
    before: Sequence[float] | np.ndarray,
    before_clusters: Sequence[Hashable] | np.ndarray,
    after: Sequence[float] | np.ndarray,
    after_clusters: Sequence[Hashable] | np.ndarray,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """95 % percentile interval of mean(after) - mean(before), unpaired: each side's clusters resampled on their own."""
    rng = np.random.default_rng(seed)
    means_before = resampled_means(before, before_clusters, rng, resamples)
    low, high = np.quantile(
        resampled_means(after, after_clusters, rng, resamples) - means_before, [0.025, 0.975]
    )
    return float(low), float(high)


def resampled_means(
    values: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | np.ndarray,
    rng: np.random.Generator,
    resamples: int,
) -> np.ndarray:
    """Means of ``values`` over resamples of whole clusters, float64 [resamples]."""
    _, place = np.unique(np.asarray(clusters), return_inverse=True)
    number = int(place.max()) + 1
    sums = np.bincount(place, weights=np.asarray(values, dtype=np.float64), minlength=number)
    counts = np.bincount(place, minlength=number)
    draws = rng.integers(0, number, size=(resamples, number))
    return np.asarray(sums[draws].sum(1) / counts[draws].sum(1))
