"""The betting bound: a lower confidence bound of the mean of rows in [0, 1] (the in-prompt certificate's default).

``naive.py`` has the formula and its source, ``kernel.py`` the same search on a GPU. Both end at the same mean but for
the rounding of a logarithm, which may move a bound by one bisection (2^-24).
"""

from __future__ import annotations

from routesparse.kernels.arrays import Array
from routesparse.kernels.betting_bound import launch, naive
from routesparse.kernels.betting_bound.naive import BET_CAP, BISECTIONS
from routesparse.kernels.common import runs_triton

__all__ = ["BET_CAP", "BISECTIONS", "betting_lower_bound"]


def betting_lower_bound(x: Array, error: float) -> Array:
    """x float64 [..., C], masses in [0, 1] in drawn order -> lower bound of their mean at level 1 - error, [...].

    Errors: ValueError for a NumPy array with fewer than two rows or values outside [0, 1]. A tensor's values are not
    looked at: on a GPU the host would have to wait for them.
    """
    return launch.betting_lower_bound(x, error) if runs_triton(x) else naive.betting_lower_bound(x, error)
