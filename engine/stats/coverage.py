"""Coverage as a statistic: over selected sparse units, with the prompt as the unit of evidence.

Heads of one prompt share rows and windows of one document share an author: 10,000 (row, head) pairs can be worth ten.
So a prompt counts once, with the share of its units that are covered; spread and minimum are over prompts; intervals
resample whole clusters of prompts that resemble each other: those of one document, or of one project where documents
are pieces of projects. numpy only.
"""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
FEWEST_CLUSTERS = 8  # a bootstrap over fewer is their range, not an interval


@dataclass(frozen=True)
class CoverageSummary:
    """Coverage over some prompts. low and high: 95 % interval over clusters, None below FEWEST_CLUSTERS of them."""

    prompts: int
    clusters: int
    units: int
    mean: float  # over prompts, of the share of covered units
    sd: float
    minimum: float
    low: float | None
    high: float | None


def summarise(
    covered: Sequence[bool] | np.ndarray,
    prompts: Sequence[Hashable] | np.ndarray,
    clusters: Sequence[Hashable] | np.ndarray,
    seed: int = 0,
) -> CoverageSummary:
    """Three values per selected sparse unit: covered, its prompt, the prompt's cluster.

    covered may also be a share, such as the audited rows above a row statement. Errors: ValueError without units.
    """
    values = np.asarray(covered, dtype=np.float64)
    if not len(values):
        raise ValueError("coverage needs at least one selected sparse unit")
    _, first, place = np.unique(np.asarray(prompts), return_index=True, return_inverse=True)
    share = np.bincount(place, weights=values) / np.bincount(place)
    of_prompt = np.asarray(clusters)[first]
    interval = trusted_interval(share, of_prompt, seed)
    low, high = (None, None) if interval is None else interval
    return CoverageSummary(
        prompts=len(share),
        clusters=len(set(of_prompt)),
        units=len(values),
        mean=float(share.mean()),
        sd=float(share.std(ddof=1)) if len(share) > 1 else 0.0,
        minimum=float(share.min()),
        low=low,
        high=high,
    )


def trusted_interval(
    values: Sequence[float] | np.ndarray, clusters: Sequence[Hashable] | np.ndarray, seed: int = 0
) -> tuple[float, float] | None:
    """``clustered_interval``, or None where fewer than FEWEST_CLUSTERS stand behind it."""
    enough = len(set(np.asarray(clusters))) >= FEWEST_CLUSTERS
    return clustered_interval(values, clusters, seed) if enough else None


def clustered_interval(
    values: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | np.ndarray,
    seed: int = 0,
    resamples: int = RESAMPLES,
) -> tuple[float, float]:
    """95 % percentile interval of the mean of ``values``, resampling whole clusters with replacement."""
    means = _resampled_means(values, clusters, np.random.default_rng(seed), resamples)
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
    means_before = _resampled_means(before, before_clusters, rng, resamples)
    low, high = np.quantile(
        _resampled_means(after, after_clusters, rng, resamples) - means_before, [0.025, 0.975]
    )
    return float(low), float(high)


def _resampled_means(
    values: Sequence[float] | np.ndarray,
    clusters: Sequence[Hashable] | np.ndarray,
    rng: np.random.Generator,
    resamples: int,
) -> np.ndarray:
    _, place = np.unique(np.asarray(clusters), return_inverse=True)
    number = int(place.max()) + 1
    sums = np.bincount(place, weights=np.asarray(values, dtype=np.float64), minlength=number)
    counts = np.bincount(place, minlength=number)
    draws = rng.integers(0, number, size=(resamples, number))
    return np.asarray(sums[draws].sum(1) / counts[draws].sum(1))
