"""Retained mass of every candidate on every probe row, and its tiles and columns (paper section 3.2, step 2).

A row's mass under level b of a family is the block mass at blocks with level <= b, plus, where the family has single
columns, the mass of columns of level <= b whose block the row does not already read: exactly the mass of the plan
that would run, before the tail override. One pass over the block masses scores all budgets.
"""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.retained_mass import launch, naive
from routesparse.kernels.retained_mass.contract import (
    FamilyLevels,
    FamilyMaps,
    ProbedRows,
    RankedColumns,
    RetainedMass,
)

__all__ = ["FamilyLevels", "FamilyMaps", "ProbedRows", "RankedColumns", "RetainedMass", "retained_mass"]

retained_mass = dispatched(naive.retained_mass, launch.retained_mass)
