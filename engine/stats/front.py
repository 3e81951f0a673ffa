"""The front of settings that trade an error against a cost.

Less is better in both. A setting is on the front when no other one is at most as dear and at most as far off, and
better in one of the two. NaN, an error or a cost that was not measured, is never on the front.
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
