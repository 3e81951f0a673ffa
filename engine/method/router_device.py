"""The router as tensor operations: the gate, and eq. 6 by multiplier search and pair repair, no host synchronisation.

For a multiplier mu every head takes argmin_c risk + mu * cost on its own; the total cost falls as mu grows. A few
rounds that each try many multipliers at once close in on the smallest feasible one, then a fixed number of rounds
applies the best single move or pair of moves that fits the remaining slack. A pair's second half is looked up: per
head the lowest risk change at a cost change of at most x is a prefix minimum over its candidates sorted by cost, so
a round takes U * C * U look-ups instead of (U * C)^2 sums. ``router.py`` is the oracle.

On a GPU this solver is taken whatever ``config.solver`` says: the other two run on the host.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.method import router

MULTIPLIERS = 32  # tried at once
SEARCH_ROUNDS = 8
REPAIR_ROUNDS = 16
DENSE_SHARE = (
    1 - 1e-9
)  # of its cost, at which dense is compared: a sparse candidate that costs as much is never taken


@dataclass(frozen=True)
class DeviceRouting:
    """router.Routing on the device: choice int64 [U], limited and over_budget bool scalars."""

    choice: torch.Tensor
    limited: torch.Tensor
    over_budget: torch.Tensor


def choose(
    mass: torch.Tensor,
    risk: torch.Tensor,
    cost: torch.Tensor,
    config: RouterConfig,
    gate: float,
    limit_us: float | None,
) -> DeviceRouting:
    """Steps 3 and 4 for the U units of one layer and segment: mass (g), risk and cost float64 [U, C], dense last.

    gate: lambda. limit_us: T_l - t_probe for these units, None without a limit. With the policy "certified",
    candidates below the gate are taken only where the limit leaves no other choice. On a CPU ``config.solver``
    solves eq. 6; on a GPU the tensor solver always does, since the others need the host.
    """
    never = torch.zeros((), dtype=torch.bool, device=cost.device)
    certified = config.policy == "certified"
    gated = cheapest_admissible(mass, cost, gate)
    if limit_us is None:
        assert certified
        return DeviceRouting(gated, never, never)
    limited = (_taken(cost, gated).sum() > limit_us) if certified else ~never
    if cost.is_cuda or config.solver == "device":
        limits = torch.full((1,), limit_us, dtype=torch.float64, device=cost.device)
        solved = solve_batched(risk.unsqueeze(0), cost.unsqueeze(0), limits)[0]
    else:
        solved = torch.from_numpy(router.solve(risk.numpy(), cost.numpy(), limit_us, config.solver))
    choice = torch.where(limited, solved, gated)
    over = limited & (_taken(cost, choice).sum() > limit_us * (1 + 1e-9))
    return DeviceRouting(choice, limited, over)


def cheapest_admissible(mass: torch.Tensor, cost: torch.Tensor, gate: float) -> torch.Tensor:
    """router.cheapest_admissible: int64 [U]."""
    price = torch.where(mass >= gate, cost, torch.inf)
    price[:, -1] = cost[:, -1] * DENSE_SHARE
    return price.argmin(1)


def solve_batched(risk: torch.Tensor, cost: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """risk, cost float64 [L, U, C]; limit [L] -> choice int64 [L, U]; the cheapest plan where none fits."""
    cheapest = cost.argmin(-1)
    spread = (risk.amax((1, 2)) - risk.amin((1, 2))).clamp_min(1e-12)
    high = (spread / _smallest_gap(cost)).log()
    low = high - 60.0
    steps = torch.arange(MULTIPLIERS + 1, device=cost.device, dtype=cost.dtype) / MULTIPLIERS
    ceiling = limit.view(-1, 1)
    for _ in range(SEARCH_ROUNDS):
        tried = low.unsqueeze(1) + (high - low).unsqueeze(1) * steps
        choice = (risk.unsqueeze(1) + tried.exp().view(*tried.shape, 1, 1) * cost.unsqueeze(1)).argmin(-1)
        price = cost.unsqueeze(1).expand(-1, len(steps), -1, -1).gather(-1, choice.unsqueeze(-1))
        fits = price.squeeze(-1).sum(-1) <= ceiling
        fits[:, -1] = True
        first = fits.int().argmax(1, keepdim=True)
        low, high = tried.gather(1, (first - 1).clamp_min(0)).squeeze(1), tried.gather(1, first).squeeze(1)
        best = choice.gather(1, first.unsqueeze(-1).expand(-1, 1, choice.shape[-1])).squeeze(1)
    # No price at all: every head takes its least risk, where that fits.
    free = risk.argmin(-1)
    for plan in (cheapest, free):
        fits = _taken(cost, plan).sum(-1) <= limit
        better = fits & (
            (_taken(cost, best).sum(-1) > limit) | (_taken(risk, plan).sum(-1) < _taken(risk, best).sum(-1))
        )
        best = torch.where(better.unsqueeze(-1), plan, best)
    best = torch.where((cost.amin(-1).sum(-1) < limit).unsqueeze(-1), best, cheapest)
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
    """One round: the best pair of moves in two heads that lowers the risk within the slack.

    A head's own current candidate is a move of cost and risk 0, so pairs include single moves.
    """
    units, width = risk.shape[1:]
    slack = limit - _taken(cost, choice).sum(-1)
    d_cost = cost - _taken(cost, choice).unsqueeze(-1)
    d_risk = risk - _taken(risk, choice).unsqueeze(-1)
    price, order = d_cost.sort(dim=-1, stable=True)
    gain, place = d_risk.gather(-1, order).cummin(-1)
    move = order.gather(-1, place)
    left = (slack.view(-1, 1, 1) - d_cost).flatten(1)
    # For each first move (its head and candidate), what is left buys in each head the best prefix: [L, U, U * C].
    reach = torch.searchsorted(price, left.unsqueeze(1).expand(-1, units, -1).contiguous(), right=True) - 1
    second = gain.gather(-1, reach.clamp_min(0)).masked_fill(reach < 0, torch.inf)
    own = torch.eye(units, dtype=torch.bool, device=risk.device).repeat_interleave(width, 1)
    # A first move without a second: the move alone, where it fits.
    second = second.masked_fill(own, torch.inf)
    alone = torch.where(left >= 0, 0.0, torch.inf).to(second).unsqueeze(1)
    total = torch.cat([second, alone], 1) + d_risk.flatten(1).unsqueeze(1)
    value, flat = total.flatten(1).min(-1)
    improved = (value < -1e-12).unsqueeze(-1)
    partner, first = flat // (units * width), flat % (units * width)
    moved = choice.clone()
    unit, candidate = (first // width).unsqueeze(-1), (first % width).unsqueeze(-1)
    moved.scatter_(1, unit, torch.where(improved, candidate, moved.gather(1, unit)))
    paired = improved & (partner < units).unsqueeze(-1)
    unit = partner.clamp_max(units - 1).unsqueeze(-1)
    reached = reach.flatten(1).gather(1, (unit * units * width + first.unsqueeze(-1))).clamp_min(0)
    candidate = move.flatten(1).gather(1, unit * width + reached)
    moved.scatter_(1, unit, torch.where(paired, candidate, moved.gather(1, unit)))
    return moved


def _taken(values: torch.Tensor, choice: torch.Tensor) -> torch.Tensor:
    return values.gather(-1, choice.unsqueeze(-1)).squeeze(-1)


def _smallest_gap(cost: torch.Tensor) -> torch.Tensor:
    """A multiplier of spread / gap makes the cheapest candidate win in every head: [L]."""
    ordered = cost.sort(-1).values
    gaps = ordered.diff(dim=-1)
    return gaps.masked_fill(gaps <= 0, torch.inf).amin((1, 2)).clamp(1e-9, 1e9)
