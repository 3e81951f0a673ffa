"""The front of settings that trade an error against a cost, and the cheapest one within an error.

Less is better in both. A setting is on the front when no other one is at most as dear and at most as far off, and
better in one of the two. NaN, an error or a cost that was not measured, is never on the front and within no error.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np


def front(costs: Sequence[float], errors: Sequence[float]) -> np.ndarray:
    """bool [n]: which of n settings are on the front. Settings that are equal in both stand there together."""
    cost, error = np.asarray(costs, float), np.asarray(errors, float)
    no_worse = (cost[:, None] <= cost) & (error[:, None] <= error)
    better = (cost[:, None] < cost) | (error[:, None] < error)
    return np.isfinite(cost) & np.isfinite(error) & ~(no_worse & better).any(axis=0)


def cheapest_within(costs: Sequence[float], errors: Sequence[float], limit: float) -> int | None:
    """The place of the cheapest setting whose error is below the limit, of equally cheap ones the one with the smaller
    error; None where none is below."""
    return _least([c if e < limit else np.nan for c, e in zip(costs, errors, strict=True)], errors)


def closest(costs: Sequence[float], errors: Sequence[float]) -> int | None:
    """The place of the setting with the smallest error, of equal ones the cheapest; None where none was measured."""
    return _least(errors, costs)


def _least(first: Sequence[float], then: Sequence[float]) -> int | None:
    """The place of the least pair, both of whose values are finite."""
    pairs = [
        (a, b, place)
        for place, (a, b) in enumerate(zip(first, then, strict=True))
        if np.isfinite(a) and np.isfinite(b)
    ]
    return min(pairs)[2] if pairs else None
