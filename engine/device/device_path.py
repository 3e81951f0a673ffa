"""Which path a tensor takes: the fused kernels on a GPU, their slow twins in the engine elsewhere."""

from __future__ import annotations

import torch


def fused(tensor: torch.Tensor) -> bool:
    """Whether the probe, the builders, scoring and lowering run as Triton kernels for tensors like this one."""
    return tensor.is_cuda
