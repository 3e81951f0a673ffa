"""The row plan: which keys each query block reads, with its checks, its area and its lowering from block masks."""

from routesparse.kernels.plan.checks import PlanError
from routesparse.kernels.plan.row_plan import RowPlan

__all__ = ["PlanError", "RowPlan"]
