"""Step 5 unit by unit in numpy: the slow twin of engine/method/fallback.py."""

from __future__ import annotations

import numpy as np

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.certificate import bernstein_lower_bound
from routesparse.engine.method.fallback import CertificateTest, Certified
from routesparse.engine.method.policy import NEXT_BUDGET
from routesparse.engine.method.router import Scores
from routesparse.kernels.betting_bound import betting_lower_bound


def certify(
    scores: Scores,
    certificate_mass: np.ndarray,
    choice: np.ndarray,
    config: RouterConfig,
    gate: float,
    slack_us: float | None = None,
) -> Certified:
    """Test the router's choice and escalate. certificate_mass float64 [U, C rows, candidates].

    slack_us: what is left of T_l; read by the policy "strict" only, which grants escalations by largest deficit
    tau - m_low while it lasts and records the others as unmet.
    """
    units = len(choice)
    dense = scores.kernel_us.shape[1] - 1
    ladders = [escalation(scores, u, int(choice[u]), gate, config.max_tests) for u in range(units)]
    final = choice.copy()
    lower = np.full(units, np.nan)
    fallback: list[str | None] = [None] * units
    unmet = np.zeros(units, dtype=bool)
    tests: list[CertificateTest] = []

    def test(active: list[int], rung: int) -> None:
        rows = np.stack([certificate_mass[u, :, ladders[u][rung]] for u in active])
        bound_of = betting_lower_bound if config.bound == "betting" else bernstein_lower_bound
        bounds = bound_of(rows, (1.0 - config.confidence) / config.max_tests)
        for u, bound in zip(active, bounds, strict=True):
            lower[u] = bound
            tests.append(CertificateTest(u, ladders[u][rung], float(bound), bool(bound >= config.tau)))

    active = [u for u in range(units) if ladders[u]]
    if active:
        test(active, 0)
    failed = [u for u in active if lower[u] < config.tau] if config.fallback else []
    slack = np.inf if config.policy != "strict" or slack_us is None else slack_us
    for rung in range(1, config.max_tests + 1):
        failed.sort(key=lambda u: (lower[u], u))  # largest deficit first
        granted = []
        for u in failed:
            target = ladders[u][rung] if rung < len(ladders[u]) else dense
            extra = scores.kernel_us[u, target] - scores.kernel_us[u, final[u]]
            if extra > slack:
                unmet[u] = True
                continue
            slack -= extra
            final[u] = target
            if target == dense:
                fallback[u], lower[u] = "dense", np.nan
            else:
                fallback[u] = "expand"
                granted.append(u)
        if not granted:
            break
        test(granted, rung)
        failed = [u for u in granted if lower[u] < config.tau]
    return Certified(final, lower, tuple(tests), tuple(fallback), unmet)


def escalation(scores: Scores, unit: int, first: int, gate: float, max_tests: int) -> list[int]:
    """The sparse candidates that may be tested for a unit, in order; empty where the router chose dense.

    After the first: the cheapest candidate with a higher gate statistic and a cost of at least NEXT_BUDGET times
    the one before, never dearer than dense.
    """
    cost, g = scores.kernel_us[unit], scores.gate_statistic[unit]
    dense = len(cost) - 1
    if first == dense:
        return []
    ladder = [first]
    while len(ladder) < max_tests:
        last = ladder[-1]
        better = [
            c
            for c in range(dense)
            if g[c] > g[last] and g[c] >= gate and NEXT_BUDGET * cost[last] <= cost[c] < cost[dense]
        ]
        if not better:
            break
        ladder.append(min(better, key=lambda c: (cost[c], -g[c])))
    return ladder
