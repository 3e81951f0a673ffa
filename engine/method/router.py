"""The router (paper section 3.4, eq. 6): one candidate per head under a latency limit. numpy only.

Three policies:

- ``certified`` (default): each head takes its cheapest candidate with g >= lambda (dense if none); T_l is a ceiling
  and eq. 6 is solved only where the sum exceeds it.
- ``budgeted`` (the paper): minimise total risk subject to t_probe + sum t_ker <= T_l; fallback may overrun it.
- ``strict``: as budgeted, and fallback only spends what is left of T_l.

Solvers of eq. 6, a multiple-choice knapsack: ``solve_greedy`` (the paper's risk per microsecond from dense
downwards, on each head's lower convex hull, ended by pair-swap repair), ``solve_exact`` (integer programme, for
tests) and ``router_device`` (multiplier search on tensors, for the GPU, which takes no other).
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from routesparse.engine.method.scores import Scores

REPAIR_ROUNDS = 64


@dataclass(frozen=True)
class Routing:
    """choice int64 [U]; limited: eq. 6 decided (not the gate alone); over_budget: the cheapest plan exceeds T_l."""

    choice: np.ndarray
    limited: bool
    over_budget: bool


def solve(risk: np.ndarray, cost: np.ndarray, limit: float, solver: str) -> np.ndarray:
    """min sum risk subject to sum cost <= limit, one candidate per row of risk, cost [U, C] -> int64 [U].

    An unattainable limit gives the cheapest plan.
    """
    if cost.min(1).sum() >= limit:
        return cost.argmin(1)
    if solver == "exact":
        return solve_exact(risk, cost, limit)
    if solver == "device":
        from routesparse.engine.method.router_device import solve_on_device

        return solve_on_device(risk, cost, limit)
    return solve_greedy(risk, cost, limit)


def cheapest_admissible(scores: Scores, gate: float) -> np.ndarray:
    """Per unit the cheapest candidate with g >= lambda; dense (the last candidate) is always admissible.

    A sparse candidate that costs as much as dense is never taken.
    """
    cost = np.where(scores.gate >= gate, scores.kernel_us, np.inf)
    cost[:, -1] = scores.kernel_us[:, -1] * (1 - 1e-9)
    return cost.argmin(1)


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
    total = _total(cost, choice)
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
        slack = limit - _total(cost, choice)
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


def solve_exact(risk: np.ndarray, cost: np.ndarray, limit: float) -> np.ndarray:
    """The optimum of eq. 6 by integer programming (scipy, HiGHS). For tests and the solver study."""
    from scipy.optimize import Bounds, LinearConstraint, milp
    from scipy.sparse import eye, kron

    count, width = risk.shape
    one_each = LinearConstraint(kron(eye(count), np.ones((1, width))), 1, 1)
    within = LinearConstraint(cost.reshape(1, -1), -np.inf, limit)
    result = milp(
        risk.ravel(), constraints=[one_each, within], integrality=np.ones(risk.size), bounds=Bounds(0, 1)
    )
    if result.x is None:
        raise ValueError(f"no solution: {result.message}")
    return result.x.reshape(count, width).argmax(1)


def _total(cost: np.ndarray, choice: np.ndarray) -> float:
    return float(cost[np.arange(len(choice)), choice].sum())
