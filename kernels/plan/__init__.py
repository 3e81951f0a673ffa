"""The row plan: which keys each query block reads, with its checks and its area, and its lowering from block masks."""

from routesparse.kernels.plan.lowering import PlanError
from routesparse.kernels.plan.row_plan import RowPlan

__all__ = ["PlanError", "RowPlan"]
