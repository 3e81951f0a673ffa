"""Exact attention of a few queries, all heads' at the same given positions among the keys (runtime/replay.py)."""

from __future__ import annotations

from torch import Tensor

from routesparse.kernels.common import runs_triton
from routesparse.kernels.logits import Logits
from routesparse.kernels.row_attention import launch, naive
from routesparse.kernels.row_attention.naive import Places

__all__ = ["Places", "row_attention"]


def row_attention(logits: Logits, v: Tensor, at: Places, *, window: int | None = None) -> Tensor:
    """See the naive twin."""
    known = runs_triton(logits.q) and launch.can_run(logits.q, v)
    return (launch if known else naive).row_attention(logits, v, at, window=window)
