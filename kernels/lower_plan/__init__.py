"""Step 6, first half: the row plan of the chosen budgets, and the share of the causal area that it keeps.

A row that keeps more than LISTED_SHARE of the longest row's blocks is dense: it saves too little to be listed.
"""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.lower_plan import launch, naive

__all__ = ["head_density", "lower_levels"]

lower_levels = dispatched(naive.lower_levels, launch.lower_levels)
head_density = dispatched(naive.head_density, launch.head_density)
