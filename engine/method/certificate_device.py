"""The in-prompt certificate (claim 1 of certificate.py) as tensor operations: no host synchronisation.

The same bounds as ``certificate.py``, which is their oracle; on a GPU the betting bound is one kernel.
"""

from __future__ import annotations

import math

import torch

from routesparse.engine.config import BoundName
from routesparse.engine.device import device_path
from routesparse.engine.method.certificate import BET_CAP, BISECTIONS
from routesparse.kernels import record_triton


def in_prompt_lower_mass(
    x: torch.Tensor, confidence: float, max_tests: int, bound: BoundName
) -> torch.Tensor:
    """x float64 [..., C], masses in [0, 1] in drawn order -> lower bound of their mean at error (1 - q)/s [...]."""
    error = (1.0 - confidence) / max_tests
    return betting_lower_bound(x, error) if bound == "betting" else bernstein_lower_bound(x, error)


def betting_lower_bound(x: torch.Tensor, error: float) -> torch.Tensor:
    """certificate.betting_lower_bound on tensors."""
    if device_path.fused(x):
        return record_triton.betting_lower_bound(x, error, BET_CAP, BISECTIONS)
    target = math.log(1.0 / error)
    bets = (2.0 * target / (x.shape[-1] * _running_variance(x))).sqrt()
    low = x.new_zeros(x.shape[:-1])
    width = 1.0
    for _ in range(BISECTIONS):
        width /= 2
        mu = (low + width).unsqueeze(-1)
        wealth = (torch.minimum(bets, BET_CAP / mu) * (x - mu)).log1p().cumsum(-1).amax(-1)
        low = torch.where(wealth >= target, mu.squeeze(-1), low)
    return low


def bernstein_lower_bound(x: torch.Tensor, error: float) -> torch.Tensor:
    """certificate.bernstein_lower_bound on tensors."""
    count = x.shape[-1]
    log_term = math.log(2.0 / error)
    width = (2.0 * x.var(-1) * log_term / count).sqrt() + 7.0 * log_term / (3.0 * (count - 1))
    return (x.mean(-1) - width).clamp(0.0, 1.0)


def _running_variance(x: torch.Tensor) -> torch.Tensor:
    """v_{i-1} for every i: from the rows before i only."""
    count = torch.arange(2, x.shape[-1] + 2, device=x.device, dtype=x.dtype)
    mean = (0.5 + x.cumsum(-1)) / count
    squares = (0.25 + (x - mean).square().cumsum(-1)) / count
    first = x.new_full((*x.shape[:-1], 1), 0.25)
    return torch.cat([first, squares[..., :-1]], -1).clamp_min(1e-12)
