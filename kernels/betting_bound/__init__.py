"""The betting bound: a lower confidence bound of the mean of rows in [0, 1] (the in-prompt certificate's default).

``naive.py`` has the formula and its source, ``kernel.py`` the same search on a GPU. Both end at the same mean but for
the rounding of a logarithm, which may move a bound by one bisection (2^-24).
"""

from __future__ import annotations

from routesparse.kernels.betting_bound import launch, naive
from routesparse.kernels.betting_bound.contract import BET_CAP, BISECTIONS
from routesparse.kernels.common import dispatched

__all__ = ["BET_CAP", "BISECTIONS", "betting_lower_bound"]

betting_lower_bound = dispatched(naive.betting_lower_bound, launch.betting_lower_bound)
