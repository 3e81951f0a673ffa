"""The oracle under its public name (see ``attention.reference``)."""

from routesparse.kernels.attention.reference import dense_attention, masked_attention, plan_attention

__all__ = ["dense_attention", "masked_attention", "plan_attention"]
