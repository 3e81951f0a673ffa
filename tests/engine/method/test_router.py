"""Eq. 6: solvers against the exact optimum on real routings, feasibility, hulls, and the three policies. CPU only."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.method import router, solvers
from routesparse.engine.method.router import Scores

BUDGET = LatencyBudget(0.5, "fraction")
BUDGETED = RouterConfig(policy="budgeted", budget=BUDGET)
SOLVERS = ["greedy", "device"]


def total(values, choice):
    return float(values[np.arange(len(choice)), choice].sum())


def choose(scores, config, gate, limit):
    """The router on a CPU: steps 3 and 4."""
    risk = scores.risk(config.alpha, 0.0)
    tensors = (torch.from_numpy(x) for x in (scores.gate_statistic, risk, scores.kernel_us))
    found = router.choose(*tensors, config, gate, limit)
    return router.Routing(found.choice.numpy(), bool(found.limited), bool(found.over_budget))


@pytest.fixture(scope="session")
def real_scores(oracle, lab):
    """Scores of 3 prompts x 4 layers, 8 heads each."""
    places = itertools.product(("prose", "code", "needle"), (1, 3, 5, 7))
    return [lab.decision(kind, layer, oracle.PROFILE).scores for kind, layer in places]


def instances(all_scores):
    """(risk, cost, limit): three limits spread between the cheapest plan and dense, per layer."""
    for scores in all_scores:
        risk, cost = scores.risk(0.5, 0.0), scores.kernel_us
        low, high = cost.min(1).sum(), cost[:, -1].sum()
        for share in (0.02, 0.2, 0.6):
            yield risk, cost, float(low + share * (high - low))


@pytest.mark.parametrize("solver", SOLVERS)
def test_solvers_stay_within_two_percent_of_the_optimum_on_real_routings(real_scores, oracle, solver):
    gaps = []
    for risk, cost, limit in instances(real_scores):
        best = total(risk, oracle.solve_exact(risk, cost, limit))
        found = total(risk, solvers.solve(risk, cost, limit, solver))
        assert found >= best - 1e-3 * max(best, 1.0)
        gaps.append((found - best) / max(best, 1e-3))
    assert len(gaps) == 36
    assert np.mean(gaps) <= 0.02, f"mean {np.mean(gaps):.4f}, worst {np.max(gaps):.4f}"


@pytest.mark.parametrize("solver", SOLVERS)
def test_no_solver_exceeds_an_attainable_limit(real_scores, oracle, solver):
    synthetic = [oracle.random_scores(seed) for seed in range(6)]
    for risk, cost, limit in instances([*real_scores[::3], *synthetic]):
        assert total(cost, solvers.solve(risk, cost, limit, solver)) <= limit * (1 + 1e-9)


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_limit_that_a_plan_meets_exactly_is_met(solver):
    """In float32 this limit would round up by more than the difference of the two costs."""
    cost = np.array([[1.0, 16_777_217.5, 2e7]])
    risk = np.array([[0.9, 0.1, 0.0]])
    assert solvers.solve(risk, cost, 16_777_217.5, solver).tolist() == [1]
    assert solvers.solve(risk, cost, 16_777_217.2, solver).tolist() == [0]


def test_repair_spends_the_slack_on_the_best_move():
    """Within the slack the move that lowers the risk most is taken; the argument stays as it was."""
    risk = np.array([[0.5, 0.3, 0.0], [0.5, 0.45, 0.0]])
    cost = np.array([[1.0, 5.0, 10.0], [1.0, 4.0, 10.0]])
    choice = np.array([0, 0])
    assert solvers.repair(choice, risk, cost, 6.0).tolist() == [1, 0]
    assert solvers.repair(choice, risk, cost, 11.0).tolist() == [2, 0]
    assert choice.tolist() == [0, 0]


def test_repair_lets_one_head_pay_for_another():
    """From (0, 1) no single move fits the limit of 10, a swap of both does."""
    risk = np.array([[0.9, 0.0], [0.2, 0.1]])
    cost = np.array([[1.0, 8.0], [1.0, 8.0]])
    assert solvers.repair(np.array([0, 1]), risk, cost, 10.0).tolist() == [1, 0]


def brute_force(risk, cost, limit):
    best = min(
        (
            choice
            for choice in itertools.product(range(risk.shape[1]), repeat=len(risk))
            if total(cost, list(choice)) <= limit
        ),
        key=lambda choice: total(risk, list(choice)),
    )
    return total(risk, list(best))


def test_the_exact_solver_is_exact(oracle):
    for seed in range(5):
        scores = oracle.random_scores(seed, units=3, width=6)
        for risk, cost, limit in instances([scores]):
            found = oracle.solve_exact(risk, cost, limit)
            assert total(risk, found) == pytest.approx(brute_force(risk, cost, limit), abs=1e-4)


@pytest.mark.parametrize("solver", SOLVERS)
def test_an_unattainable_limit_gives_the_cheapest_plan_and_says_so(oracle, solver):
    scores = oracle.random_scores(1)
    limit = float(scores.kernel_us.min(1).sum()) - 1.0
    routed = choose(scores, replace(BUDGETED, solver=solver), 0.9, limit)
    assert (routed.choice == scores.kernel_us.argmin(1)).all()
    assert routed.over_budget and routed.limited


@pytest.mark.parametrize("solver", SOLVERS)
def test_a_limit_above_dense_gives_the_least_risk_of_all(oracle, solver):
    scores = oracle.random_scores(2, units=64)
    routed = choose(scores, replace(BUDGETED, solver=solver), 0.9, 1e9)
    assert total(scores.risk(0.5, 0), routed.choice) == pytest.approx(
        scores.risk(0.5, 0).min(1).sum(), abs=1e-6
    )
    assert not routed.over_budget


@pytest.mark.parametrize("seed", range(20))
def test_the_hull_is_the_lower_left_convex_frontier(seed):
    """By definition: a point is on it if it minimises risk + mu * cost for some mu >= 0."""
    g = np.random.default_rng(seed)
    risk, cost = g.random(12), g.random(12)
    hull = solvers.lower_hull(risk, cost)
    assert (np.diff(cost[hull]) > 0).all() and (np.diff(risk[hull]) < 0).all()
    needed = {int((risk + mu * cost).argmin()) for mu in np.geomspace(1e-6, 1e6, 4_000)}
    assert needed <= set(hull)
    slopes = np.diff(risk[hull]) / np.diff(cost[hull])
    assert (np.diff(slopes) > 0).all()


# Policies.


def three(mass, cost):
    mass, cost = np.array(mass, float), np.array(cost, float)
    return Scores(mass, mass, np.zeros_like(mass), cost / cost.max(), cost)


@pytest.mark.parametrize("cost", [10.0, 11.0], ids=["as-dear-as-dense", "dearer"])
def test_a_sparse_candidate_that_saves_nothing_is_not_taken(cost):
    assert router.cheapest_admissible(np.array([[0.99, 1.0]]), np.array([[cost, 10.0]]), 0.9).tolist() == [1]


def test_the_gate_is_the_cheapest_admissible_by_brute_force(real_scores):
    for scores in real_scores:
        for gate in (0.7, 0.9, 0.97):
            for u, place in enumerate(
                router.cheapest_admissible(scores.gate_statistic, scores.kernel_us, gate)
            ):
                g, cost = scores.gate_statistic[u], scores.kernel_us[u]
                fit = [c for c in range(len(g) - 1) if g[c] >= gate and cost[c] < cost[-1]]
                assert place == (min(fit, key=lambda c: cost[c]) if fit else len(g) - 1)


def test_certified_without_a_limit_or_under_a_wide_one_is_the_gate_alone(real_scores):
    for scores in real_scores:
        gate_choice = router.cheapest_admissible(scores.gate_statistic, scores.kernel_us, 0.9)
        # The sums of numpy and torch may differ in their last bit.
        for limit in (None, total(scores.kernel_us, gate_choice) * (1 + 1e-12)):
            routed = choose(scores, RouterConfig(budget=BUDGET), 0.9, limit)
            assert (routed.choice == gate_choice).all()
            assert not routed.limited and not routed.over_budget


def test_certified_under_a_ceiling_below_the_gates_plan_solves_equation_six(real_scores):
    for scores in real_scores:
        limit = 0.8 * total(
            scores.kernel_us, router.cheapest_admissible(scores.gate_statistic, scores.kernel_us, 0.9)
        )
        routed = choose(scores, RouterConfig(budget=BUDGET), 0.9, limit)
        assert routed.limited
        assert routed.over_budget or total(scores.kernel_us, routed.choice) <= limit * (1 + 1e-9)


@pytest.mark.parametrize("policy", ["budgeted", "strict"])
def test_the_budgeted_policies_spend_the_limit_for_less_risk_than_the_gate(real_scores, policy):
    config = RouterConfig(policy=policy, budget=BUDGET)
    for scores in real_scores:
        gate_choice = router.cheapest_admissible(scores.gate_statistic, scores.kernel_us, 0.9)
        risk = scores.risk(config.alpha, 0.0)
        routed = choose(scores, config, 0.9, total(scores.kernel_us, gate_choice))
        assert routed.limited
        # The greedy solver may miss the optimum by a few per cent.
        assert total(risk, routed.choice) <= 1.05 * total(risk, gate_choice)


# Scores.


def two_and_dense(**extra):
    one = np.array([[0.9, 0.95, 1.0]])
    values = {
        "mass": one,
        "recent_mass": np.array([[0.95, 0.8, 1.0]]),
        "disagreement": np.array([[0.1, 0.0, 0.0]]),
        "density": np.array([[0.1, 0.2, 1.0]]),
        "kernel_us": np.array([[1.0, 2.0, 9.0]]),
    }
    return Scores(**{**values, **extra})


def test_risk_is_the_omitted_gate_mass_plus_weighted_disagreement_and_error():
    np.testing.assert_allclose(two_and_dense().gate_statistic, [[0.9, 0.8, 1.0]])
    with_error = two_and_dense(predicted_error=np.array([[0.2, 0.3, 0.0]]))
    np.testing.assert_allclose(with_error.risk(0.5, 2.0), [[0.1 + 0.05 + 0.4, 0.2 + 0.6, 0.0]])


def test_beta_without_a_predictor_is_refused():
    with pytest.raises(ValueError, match="beta > 0 needs an error predictor"):
        two_and_dense().risk(0.5, 1.0)


def test_tensors_give_the_arrays_numbers_to_the_last_bit(oracle):
    base = replace(oracle.random_scores(0), predicted_error=oracle.random_scores(1).disagreement)
    there = Scores(**{name: torch.from_numpy(value) for name, value in vars(base).items()})
    assert (there.gate_statistic.numpy() == base.gate_statistic).all()
    assert (there.risk(0.5, 2.0).numpy() == base.risk(0.5, 2.0)).all()
    gated = router.cheapest_admissible(there.gate_statistic, there.kernel_us, 0.8)
    assert (gated.numpy() == router.cheapest_admissible(base.gate_statistic, base.kernel_us, 0.8)).all()
    arrays, tensors = (
        router.choose(s.gate_statistic, s.risk(0.5, 0.0), s.kernel_us, RouterConfig(), 0.8, 1e3)
        for s in (base, there)
    )
    assert (arrays.choice == tensors.choice.numpy()).all()
    assert bool(arrays.limited) == bool(tensors.limited)
