"""What the betting bound and its kernel share: how far a bet goes, how fine the search is, which rows are taken."""

from __future__ import annotations

from typing import Any

import numpy as np

BISECTIONS = 24
BET_CAP = 0.98  # c: the largest share of the wealth that one row may cost


def checked(x: Any) -> np.ndarray:
    """x as float64. Errors: ValueError unless it has at least two rows and every value lies in [0, 1]."""
    x = np.asarray(x, dtype=np.float64)
    if x.shape[-1] < 2 or not ((x >= 0.0) & (x <= 1.0)).all():
        raise ValueError("certificates need at least two rows with masses in [0, 1]")
    return x
