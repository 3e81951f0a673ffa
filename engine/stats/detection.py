"""How well a number foretells: rank correlation, and the ROC curve of finding what was lost. NumPy only.

Every function takes weights [B, n], how often each of n observations counts in each of B resamples (``Draws.counts`` of
``paired.py`` by row, where row 0 is the sample itself), and gives [B], exactly what the statistic is of the repeated
observations. NaN where it is undefined: a constant side, no positive or no negative.

Groups: with ``groups`` int [n] only pairs of one group are compared, so that what differs between groups, such as how
much two methods read, cannot look like foresight. Spearman's rho is then the mean of the groups', weighted by their
observations; the area under the curve is that of all pairs within groups.
"""

from __future__ import annotations

import numpy as np


def spearman(
    x: np.ndarray, y: np.ndarray, weights: np.ndarray, groups: np.ndarray | None = None
) -> np.ndarray:
    """Spearman's rho of x and y, ties at their mean rank."""
    if groups is not None:
        return _mean_of_groups(x, y, weights, groups)
    ranks = [_mid_ranks(values, weights) for values in (x, y)]
    total = weights.sum(1, keepdims=True)
    with np.errstate(invalid="ignore", divide="ignore"):
        centred = [rank - (weights * rank).sum(1, keepdims=True) / total for rank in ranks]
        spread = [(weights * part**2).sum(1) for part in centred]
        rho = (weights * centred[0] * centred[1]).sum(1) / np.sqrt(spread[0] * spread[1])
    enough = (spread[0] > 1e-9) & (spread[1] > 1e-9)
    return np.where(enough, rho, np.nan)


def area_under_curve(
    x: np.ndarray, positive: np.ndarray, weights: np.ndarray, groups: np.ndarray | None = None
) -> np.ndarray:
    """Probability that a positive has the larger x than a negative, ties one half."""
    won, pairs = np.zeros(len(weights)), np.zeros(len(weights))
    for place in _places(x, groups):
        more, of = _wins(x[place], positive[place], weights[:, place])
        won, pairs = won + more, pairs + of
    return np.divide(won, pairs, out=np.full(len(won), np.nan), where=pairs > 0)


def detected(x: np.ndarray, positive: np.ndarray, weights: np.ndarray, false_alarms: float) -> np.ndarray:
    """The ROC curve at one point: the largest share of positives at or above a threshold that at most the share
    ``false_alarms`` of the negatives reaches."""
    _, place = np.unique(-x, return_inverse=True)
    hits, alarms = (
        _grouped(weights * chosen, place).cumsum(1)
        for chosen in (positive.astype(bool), ~positive.astype(bool))
    )
    allowed = alarms <= false_alarms * alarms[:, -1:] + 1e-9
    # Alarms grow along the thresholds, so that the allowed ones come first.
    found = np.where(allowed, hits, 0.0).max(1)
    total = hits[:, -1]
    known = (total > 0) & (alarms[:, -1] > 0)
    return np.divide(found, total, out=np.full(len(total), np.nan), where=known)


def _mean_of_groups(x: np.ndarray, y: np.ndarray, weights: np.ndarray, groups: np.ndarray) -> np.ndarray:
    sums, sizes = np.zeros(len(weights)), np.zeros(len(weights))
    for place in _places(x, groups):
        rho, size = spearman(x[place], y[place], weights[:, place]), weights[:, place].sum(1)
        known = ~np.isnan(rho)
        sums += np.where(known, rho * size, 0.0)
        sizes += known * size
    return np.divide(sums, sizes, out=np.full(len(sums), np.nan), where=sizes > 0)


def _places(x: np.ndarray, groups: np.ndarray | None) -> list[np.ndarray]:
    if groups is None:
        return [np.arange(len(x))]
    return [np.flatnonzero(groups == group) for group in np.unique(groups)]


def _wins(x: np.ndarray, positive: np.ndarray, weights: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    _, place = np.unique(x, return_inverse=True)
    chosen = positive.astype(bool)
    ups, downs = (_grouped(weights * side, place) for side in (chosen, ~chosen))
    below = downs.cumsum(1) - downs
    return (ups * (below + downs / 2)).sum(1), ups.sum(1) * downs.sum(1)


def _mid_ranks(values: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """[B, n]: the mean rank, less a constant, of each value among the repeated ones."""
    _, place = np.unique(values, return_inverse=True)
    sizes = _grouped(weights, place)
    return (sizes.cumsum(1) - sizes / 2)[:, place]


def _grouped(weights: np.ndarray, place: np.ndarray) -> np.ndarray:
    """[B, values]: the weights of equal values together, in ascending order of the values."""
    order = np.argsort(place, kind="stable")
    starts = np.searchsorted(place[order], np.arange(place.max() + 1))
    return np.add.reduceat(weights[:, order], starts, axis=1)
