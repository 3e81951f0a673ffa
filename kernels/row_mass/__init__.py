"""Masses of each probe row by KV block, and what they add up to (paper section 3.2)."""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.row_mass import launch, naive
from routesparse.kernels.row_mass.contract import RowMass

__all__ = ["RowMass", "row_mass"]

row_mass = dispatched(naive.row_mass, launch.row_mass)
