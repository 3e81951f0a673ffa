"""The betting bound in array operations (Waudby-Smith and Ramdas, 2024). For a hypothesised mean mu the wealth

    W_t(mu) = prod_{i <= t} (1 + lambda_i (x_i - mu)),   0 <= lambda_i <= c / mu,  lambda_i fixed before x_i is seen

has expectation at most 1 when the true mean is <= mu, so P(max_t W_t(mu) >= 1/error) <= error (Ville). W falls in mu;
the bound is the mu at which the wealth no longer reaches 1/error, found by bisection. The bets are
lambda_i = sqrt(2 ln(1/error) / (C v_{i-1})), with v_{i-1} the running variance of the rows before i.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from routesparse.kernels.arrays import Array, namespace

BISECTIONS = 24
BET_CAP = 0.98  # c: the largest share of the wealth that one row may cost


def checked(x: Any) -> np.ndarray:
    """x as float64. Errors: ValueError unless it has at least two rows and every value lies in [0, 1]."""
    x = np.asarray(x, dtype=np.float64)
    if x.shape[-1] < 2 or not ((x >= 0.0) & (x <= 1.0)).all():
        raise ValueError("certificates need at least two rows with masses in [0, 1]")
    return x


def betting_lower_bound(x: Array, error: float) -> Array:
    """x float64 [..., C], masses in [0, 1] in drawn order -> lower bound of their mean at level 1 - error, [...].

    Errors: ValueError for a NumPy array with fewer than two rows or values outside [0, 1]. A tensor's values are not
    looked at: on a GPU the host would have to wait for them.
    """
    xp = namespace(x)
    if xp is np:
        x = checked(x)
    target = math.log(1.0 / error)
    bets = xp.sqrt(2.0 * target / (x.shape[-1] * running_variance(x)))
    low = xp.zeros_like(x[..., 0])
    width = 1.0
    for _ in range(BISECTIONS):
        width /= 2
        mu = (low + width)[..., None]
        wealth = xp.log1p(xp.minimum(bets, BET_CAP / mu) * (x - mu)).cumsum(-1)
        # A wealth that reaches the target says that the mean is not as low as mu.
        low = xp.where(xp.amax(wealth, -1) >= target, mu[..., 0], low)
    return low


def running_variance(x: Array) -> Array:
    """v_{i-1} for every i, from the rows before i only: a prior of 1/4 with the weight of one row, at least 1e-12."""
    xp = namespace(x)
    # Row counts as x's own type, on its device.
    count = xp.cumsum(xp.ones_like(x), -1) + 1
    mean = (0.5 + x.cumsum(-1)) / count
    squares = (0.25 + xp.square(x - mean).cumsum(-1)) / count
    first = xp.full_like(x[..., :1], 0.25)
    return xp.clip(xp.concatenate([first, squares[..., :-1]], -1), 1e-12, None)
