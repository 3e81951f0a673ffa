"""Steps 4 and 5 as tensors against their numpy oracles: ladders, escalation, eq. 6. CPU only."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.method import router, solvers
from routesparse.engine.method.fallback import Escalated, certify, escalation, read_escalated

ROWS = 128
CONFIG = RouterConfig(tau=0.8)
BUDGET = LatencyBudget(0.5, "fraction")


def as_host(found, tau):
    return read_escalated(Escalated(**{name: value.numpy() for name, value in vars(found).items()}), tau)


def random_rows(g, units, width):
    rows = np.clip(g.beta(8, 1, (units, ROWS, width)) * g.uniform(0.75, 1, (units, 1, width)), 0, 1)
    rows[..., -1] = 1.0
    return rows


@pytest.mark.parametrize("max_tests", [1, 3, 5])
def test_every_units_ladder_is_the_oracles(oracle, unit_by_unit, max_tests):
    for seed in range(10):
        scores = oracle.random_scores(seed, units=40, width=12)
        scores.kernel_us[:, 3] = scores.kernel_us[:, 4]  # ties
        choice = np.random.default_rng(seed).integers(0, 12, 40)
        cost, mass = torch.from_numpy(scores.kernel_us), torch.from_numpy(scores.gate_statistic)
        found = escalation(cost, mass, torch.from_numpy(choice), 0.7, max_tests).tolist()
        for unit in range(40):
            wanted = unit_by_unit.escalation(scores, unit, int(choice[unit]), 0.7, max_tests)
            assert [rung for rung in found[unit] if rung >= 0] == wanted


@pytest.mark.parametrize("bound", ["betting", "bernstein"])
@pytest.mark.parametrize(
    ("policy", "slack"),
    [("certified", None), ("budgeted", 10.0), ("strict", 0.0), ("strict", 60.0), ("strict", 1e9)],
)
def test_escalation_ends_as_the_oracles_does(oracle, unit_by_unit, bound, policy, slack):
    config = replace(CONFIG, policy=policy, bound=bound, budget=None if policy == "certified" else BUDGET)
    for seed in range(8):
        for settings in (config, replace(config, fallback=False)):
            scores = oracle.random_scores(seed, units=16, width=9)
            g = np.random.default_rng(seed)
            rows, choice = random_rows(g, 16, 9), g.integers(0, 9, 16)
            wanted = unit_by_unit.certify(scores, rows, choice, settings, 0.75, slack)
            found = as_host(
                certify(
                    torch.from_numpy(scores.kernel_us),
                    torch.from_numpy(scores.gate_statistic),
                    torch.from_numpy(rows),
                    torch.from_numpy(choice),
                    settings,
                    0.75,
                    None if slack is None else torch.tensor(slack, dtype=torch.float64),
                ),
                settings.tau,
            )
            assert found.choice.tolist() == wanted.choice.tolist()
            assert found.fallback == wanted.fallback and found.unmet.tolist() == wanted.unmet.tolist()
            np.testing.assert_allclose(found.lower_mass, wanted.lower_mass, atol=1e-6)
            key = [(t.unit, t.candidate, t.passed) for t in found.tests]
            assert sorted(key) == sorted((t.unit, t.candidate, t.passed) for t in wanted.tests)


def taken(cost, choice):
    return float(cost[np.arange(len(choice)), choice].sum())


@pytest.mark.parametrize("policy", ["certified", "budgeted"])
@pytest.mark.parametrize("share", [None, 0.3, 0.9, 5.0])
def test_the_router_chooses_what_its_oracle_chooses(oracle, policy, share):
    config = RouterConfig(policy=policy, budget=BUDGET, solver="device")
    if share is None and policy == "budgeted":
        config = replace(config, policy="certified")
    for seed in range(6):
        scores = oracle.random_scores(seed, units=12)
        limit = None if share is None else share * float(scores.kernel_us[:, -1].sum())
        cost, risk = scores.kernel_us, scores.risk(config.alpha, 0.0)
        gated = router.cheapest_admissible(scores.gate_statistic, scores.kernel_us, 0.8)
        limited = limit is not None and (config.policy == "budgeted" or taken(cost, gated) > limit)
        wanted = oracle.solve_exact(risk, cost, limit) if limited else gated
        tensors = (torch.from_numpy(x) for x in (scores.gate_statistic, risk, scores.kernel_us))
        found = router.choose(*tensors, config, 0.8, limit)
        if limited:
            units = np.arange(len(cost))
            assert risk[units, found.choice.numpy()].sum() <= 1.02 * risk[units, wanted].sum() + 1e-9
        else:
            assert found.choice.tolist() == wanted.tolist()
        assert bool(found.limited) == limited
        assert bool(found.over_budget) == (limited and taken(cost, wanted) > limit * (1 + 1e-9))


def test_repair_on_tensors_finds_the_best_pair(oracle):
    """One round against every pair of moves in two heads, tried one by one."""
    for seed in range(30):
        scores = oracle.random_scores(seed, units=4, width=5)
        risk, cost = scores.risk(0.5, 0.0), scores.kernel_us
        choice = np.random.default_rng(seed).integers(0, 5, 4)
        limit = float(cost[np.arange(4), choice].sum()) + 7.0
        best = risk[np.arange(4), choice].sum()
        for a, b in ((a, b) for a in range(4) for b in range(4) if a != b):
            for i in range(5):
                for j in range(5):
                    moved = choice.copy()
                    moved[a], moved[b] = i, j
                    if cost[np.arange(4), moved].sum() <= limit:
                        best = min(best, risk[np.arange(4), moved].sum())
        found = solvers.best_pair(
            torch.from_numpy(choice)[None], torch.from_numpy(risk)[None], torch.from_numpy(cost)[None],
            torch.tensor([limit], dtype=torch.float64),
        )[0].numpy()  # fmt: skip
        assert risk[np.arange(4), found].sum() == pytest.approx(best, abs=1e-9)
        assert cost[np.arange(4), found].sum() <= limit * (1 + 1e-9)
