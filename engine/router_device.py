"""Eq. 6 as tensor operations: bisection on the Lagrange multiplier, then a vectorised fill of the slack.

For a multiplier mu every head takes argmin_c risk + mu * cost on its own; the total cost falls as mu grows. The
smallest feasible mu is found by a fixed number of bisections (no host synchronisation), then a fixed number of
rounds applies the best single move or pair swap that fits the remaining slack.
"""

from __future__ import annotations

import numpy as np
import torch

BISECTIONS = 40
REPAIR_ROUNDS = 24


def solve_batched(risk: torch.Tensor, cost: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """risk, cost [L, U, C] float; limit [L] -> choice int64 [L, U]; the cheapest plan where none fits."""
    low = risk.new_zeros(len(risk))
    spread = (risk.amax((1, 2)) - risk.amin((1, 2))).clamp_min(1e-12)
    high = spread / _smallest_gap(cost)
    best = cost.argmin(-1)
    for _ in range(BISECTIONS):
        middle = torch.where(low > 0, (low * high).sqrt(), high * 1e-6)
        choice = (risk + middle.view(-1, 1, 1) * cost).argmin(-1)
        feasible = _taken(cost, choice).sum(-1) <= limit
        best = torch.where(feasible.unsqueeze(-1), choice, best)
        high = torch.where(feasible, middle, high)
        low = torch.where(feasible, low, middle)
    for _ in range(REPAIR_ROUNDS):
        best = _repair(best, risk, cost, limit)
    return best


def solve_on_device(risk: np.ndarray, cost: np.ndarray, limit: float) -> np.ndarray:
    """solve_batched for one instance of host arrays: risk, cost [U, C] -> int64 [U]."""
    # A float32 limit could round up, above what the plan may cost.
    limits = torch.tensor([limit], dtype=torch.float64)
    solved = solve_batched(torch.from_numpy(risk).unsqueeze(0), torch.from_numpy(cost).unsqueeze(0), limits)
    return solved[0].numpy()


def _repair(
    choice: torch.Tensor, risk: torch.Tensor, cost: torch.Tensor, limit: torch.Tensor
) -> torch.Tensor:
    """One round: the best single move or pair of moves in two heads that lowers the risk within the slack."""
    _, units, width = risk.shape
    slack = limit - _taken(cost, choice).sum(-1)
    d_cost = (cost - _taken(cost, choice).unsqueeze(-1)).flatten(1)
    d_risk = (risk - _taken(risk, choice).unsqueeze(-1)).flatten(1)
    # A head's own current candidate is a move of cost and risk 0, so pairs include single moves.
    owner = torch.arange(units, device=risk.device).repeat_interleave(width)
    total = d_risk.unsqueeze(2) + d_risk.unsqueeze(1)
    fits = d_cost.unsqueeze(2) + d_cost.unsqueeze(1) <= slack.view(-1, 1, 1)
    if units > 1:
        fits &= owner.unsqueeze(1) != owner.unsqueeze(0)
    value, flat = total.masked_fill(~fits, torch.inf).flatten(1).min(-1)
    improved = value < -1e-12
    moved = choice.clone()
    for place in (flat // (units * width), flat % (units * width)):
        unit, candidate = (place // width).unsqueeze(-1), (place % width).unsqueeze(-1)
        moved.scatter_(1, unit, torch.where(improved.unsqueeze(-1), candidate, moved.gather(1, unit)))
    return moved


def _taken(values: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
    return values.gather(-1, choice.unsqueeze(-1)).squeeze(-1)


def _smallest_gap(cost: torch.Tensor) -> torch.Tensor:
    """A multiplier of spread / gap makes the cheapest candidate win in every head: [L]."""
    ordered = cost.sort(-1).values
    gaps = ordered.diff(dim=-1)
    return gaps.masked_fill(gaps <= 0, torch.inf).amin((1, 2)).clamp(1e-9, 1e9)
