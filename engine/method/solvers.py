"""Solvers of eq. 6 (paper section 3.4), a multiple-choice knapsack: min sum risk subject to sum cost <= T_l - t_probe.

- ``solve_greedy``: the paper's risk per microsecond from dense downwards, on each head's lower convex hull, ended by
  pair-swap repair. NumPy.
- ``solve_by_multipliers``: multiplier search and pair repair on tensors, without waiting for the host; the only one
  that a GPU takes (decide/units.py chooses it there).

torch is imported inside the functions that need it: the dashboard's process imports this module.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import numpy as np

from routesparse.kernels.arrays import Array, namespace

if TYPE_CHECKING:
    import torch

REPAIR_ROUNDS = 64
MULTIPLIERS = 32  # tried at once
SEARCH_ROUNDS = 8
PAIR_ROUNDS = 16


def solve(risk: Array, cost: Array, limit: float, solver: str) -> Array:
    """min sum risk subject to sum cost <= limit, one candidate per row of risk, cost float64 [U, C] -> int64 [U].

    solver: "greedy" on the host, "device" where the arrays are. An unattainable limit gives the cheapest
    plan.
    """
    if namespace(cost) is not np:
        if solver == "device":
            return _solve_tensors(risk, cost, limit)
        import torch

        return torch.from_numpy(solve(risk.numpy(), cost.numpy(), limit, solver))
    if cost.min(1).sum() >= limit:
        return cost.argmin(1)
    if solver == "device":
        import torch

        return _solve_tensors(torch.from_numpy(risk), torch.from_numpy(cost), limit).numpy()
    return solve_greedy(risk, cost, limit)


def taken(values: Array, choice: Array) -> Array:
    """values [..., U, C] at choice int64 [..., U] -> [..., U]."""
    xp = namespace(values)
    at = choice[..., None]
    return (xp.take_along_axis(values, at, -1) if xp is np else values.gather(-1, at))[..., 0]


def solve_greedy(risk: np.ndarray, cost: np.ndarray, limit: float) -> np.ndarray:
    """The paper's greedy on lower convex hulls, from each head's lowest risk downwards, then pair-swap repair."""
    hulls = [lower_hull(risk[u], cost[u]) for u in range(len(risk))]
    steps = []  # (risk added per microsecond saved, unit, position on the hull after the step)
    for u, hull in enumerate(hulls):
        for place in range(len(hull) - 1, 0, -1):
            high, low = hull[place], hull[place - 1]
            slope = (risk[u, low] - risk[u, high]) / (cost[u, high] - cost[u, low])
            steps.append((slope, u, place - 1))
    choice = np.array([hull[-1] for hull in hulls])
    total = float(taken(cost, choice).sum())
    for _, u, place in sorted(steps):  # slopes grow along a hull, so steps of one head come in order
        if total <= limit:
            break
        total += cost[u, hulls[u][place]] - cost[u, choice[u]]
        choice[u] = hulls[u][place]
    return repair(choice, risk, cost, limit)


def lower_hull(risk: np.ndarray, cost: np.ndarray) -> list[int]:
    """Candidates on the lower convex hull of (cost, risk), by rising cost and falling risk."""
    order = np.lexsort((risk, cost))
    hull: list[int] = []
    for i in order:
        if hull and (risk[i] >= risk[hull[-1]] or cost[i] <= cost[hull[-1]]):
            continue
        while len(hull) >= 2:
            a, b = hull[-2], hull[-1]
            if (risk[a] - risk[b]) * (cost[i] - cost[b]) > (risk[b] - risk[i]) * (cost[b] - cost[a]):
                break
            hull.pop()
        hull.append(int(i))
    return hull


def repair(choice: np.ndarray, risk: np.ndarray, cost: np.ndarray, limit: float) -> np.ndarray:
    """Improve a feasible choice by single moves and pair swaps until none lowers the total risk.

    A pair swap moves two heads at once where the sum of cost changes fits the slack: one pays for the other.
    """
    choice = choice.copy()
    units = np.arange(len(choice))
    for _ in range(REPAIR_ROUNDS):
        slack = limit - float(taken(cost, choice).sum())
        d_cost = cost - cost[units, choice][:, None]
        d_risk = risk - risk[units, choice][:, None]
        single = np.where(d_cost <= slack, d_risk, np.inf)
        u, c = np.unravel_index(single.argmin(), single.shape)
        best, move = single[u, c], [(int(u), int(c))]
        cheapest = _best_partner(d_cost, d_risk, slack)
        if cheapest is not None and cheapest[0] < best:
            best, move = cheapest
        if best >= -1e-12:
            return choice
        for unit, candidate in move:
            choice[unit] = candidate
    return choice


def _best_partner(
    d_cost: np.ndarray, d_risk: np.ndarray, slack: float
) -> tuple[float, list[tuple[int, int]]] | None:
    """The pair of moves in two different heads with the lowest total d_risk and total d_cost <= slack.

    Per head the lowest d_risk at a d_cost of at most x is a prefix minimum over its candidates by cost.
    """
    count, width = d_cost.shape
    left = (slack - d_cost).ravel()
    owner = np.repeat(np.arange(count), width)
    best: tuple[float, list[tuple[int, int]]] | None = None
    for head in range(count):
        order = np.argsort(d_cost[head], kind="stable")
        lowest = np.minimum.accumulate(d_risk[head, order])
        reach = np.searchsorted(d_cost[head, order], left, side="right")
        fits = (reach > 0) & (owner != head)
        total = np.where(fits, d_risk.ravel() + lowest[reach - 1], np.inf)
        first = int(total.argmin())
        if np.isfinite(total[first]) and (best is None or total[first] < best[0]):
            second = order[int(d_risk[head, order[: reach[first]]].argmin())]
            best = float(total[first]), [divmod(first, width), (head, int(second))]
    return best


def solve_by_multipliers(risk: torch.Tensor, cost: torch.Tensor, limit: torch.Tensor) -> torch.Tensor:
    """risk, cost float64 [L, U, C]; limit [L] -> choice int64 [L, U]; the cheapest plan where none fits.

    For a multiplier mu every head takes argmin_c risk + mu * cost on its own; the total cost falls as mu grows. A few
    rounds that each try many multipliers at once close in on the smallest feasible one, then a fixed number of rounds
    applies the best single move or pair of moves that fits the remaining slack.
    """
    import torch

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
        fits = taken(cost, plan).sum(-1) <= limit
        better = fits & (
            (taken(cost, best).sum(-1) > limit) | (taken(risk, plan).sum(-1) < taken(risk, best).sum(-1))
        )
        best = torch.where(better.unsqueeze(-1), plan, best)
    best = torch.where((cost.amin(-1).sum(-1) < limit).unsqueeze(-1), best, cheapest)
    for _ in range(PAIR_ROUNDS):
        best = best_pair(best, risk, cost, limit)
    return best


def best_pair(
    choice: torch.Tensor, risk: torch.Tensor, cost: torch.Tensor, limit: torch.Tensor
) -> torch.Tensor:
    """One round: the best pair of moves in two heads that lowers the risk within the slack.

    A pair's second half is looked up: per head the lowest risk change at a cost change of at most x is a prefix minimum
    over its candidates sorted by cost, so a round takes U * C * U look-ups instead of (U * C)^2 sums. A head's own
    current candidate is a move of cost and risk 0, so pairs include single moves.
    """
    import torch

    units, width = risk.shape[1:]
    slack = limit - taken(cost, choice).sum(-1)
    d_cost = cost - taken(cost, choice).unsqueeze(-1)
    d_risk = risk - taken(risk, choice).unsqueeze(-1)
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


def _smallest_gap(cost: torch.Tensor) -> torch.Tensor:
    """A multiplier of spread / gap makes the cheapest candidate win in every head: [L]."""
    import torch

    ordered = cost.sort(-1).values
    gaps = ordered.diff(dim=-1)
    return gaps.masked_fill(gaps <= 0, torch.inf).amin((1, 2)).clamp(1e-9, 1e9)


def _solve_tensors(risk: torch.Tensor, cost: torch.Tensor, limit: float) -> torch.Tensor:
    """solve_by_multipliers for one instance."""
    import torch

    # A float32 limit could round up, above what the plan may cost.
    limits = torch.full((1,), limit, dtype=torch.float64, device=cost.device)
    return solve_by_multipliers(risk.unsqueeze(0), cost.unsqueeze(0), limits)[0]
