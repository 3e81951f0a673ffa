"""The public face of the kernels: a row plan says which keys each query block reads, one call computes the attention.

    plan = RowPlan.from_block_mask(mask, n_q, n_k)
    out, lse = sparse_attention(q, k, v, plan)

``plan`` holds the row plan, ``attention`` its backends; ``reference`` is the oracle that they are tested against.
"""

from routesparse.kernels.attention import Backend, sparse_attention
from routesparse.kernels.plan import PlanError, RowPlan

__all__ = ["Backend", "PlanError", "RowPlan", "sparse_attention"]
