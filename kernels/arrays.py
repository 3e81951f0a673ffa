"""Formulas written once for NumPy arrays and torch tensors: which of the two libraries an array belongs to.

The dashboard's process evaluates the same formulas as the router and must not import torch.
"""

from __future__ import annotations

import sys
from typing import Any, TypeAlias

import numpy as np

Array: TypeAlias = Any  # np.ndarray or torch.Tensor; all arrays of one call are of the same kind


def namespace(x: Array) -> Any:
    """The module whose functions take x: numpy, or torch where x is a tensor (which is then imported already)."""
    return np if isinstance(x, np.ndarray | np.generic) else sys.modules["torch"]
