"""Step 5: which candidates are tested, in which order, and what follows a failed certificate. No GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.method import fallback
from routesparse.engine.method.router import Scores

CONFIG = RouterConfig(tau=0.8, confidence=0.95, max_tests=3)
STRICT = replace(CONFIG, policy="strict", budget=LatencyBudget(1.0, "fraction"))
ROWS = 128
GATE = 0.85


def scores(cost=(10, 20, 40, 80, 100), gate=(0.9, 0.92, 0.95, 0.97, 1.0), units=1):
    cost, gate = (np.tile(np.array(x, float), (units, 1)) for x in (cost, gate))
    return Scores(gate, gate, np.zeros_like(gate), cost / 100, cost)


def masses(*per_candidate, units=1):
    """Certificate rows [units, ROWS, C]: constant mass per candidate; dense last."""
    one = np.tile(np.array([*per_candidate, 1.0]), (ROWS, 1))
    return np.tile(one, (units, 1, 1))


def run(s, rows, choice, config=CONFIG, slack=None):
    left = None if slack is None else torch.tensor(slack, dtype=torch.float64)
    arrays = (torch.from_numpy(np.asarray(x)) for x in (s.kernel_us, s.gate_statistic, rows, choice))
    found = fallback.certify(*arrays, config, GATE, left)
    return fallback.read_escalated(
        fallback.Escalated(**{name: x.numpy() for name, x in vars(found).items()}), config.tau
    )


def escalation(s, unit, choice, gate, max_tests):
    """The ladder of one unit."""
    cost, mass = torch.from_numpy(s.kernel_us), torch.from_numpy(s.gate_statistic)
    ladder = fallback.escalation(cost, mass, torch.full((len(cost),), choice), gate, max_tests)[unit]
    return [rung for rung in ladder.tolist() if rung >= 0]


def test_a_passing_certificate_keeps_the_choice_after_one_test():
    found = run(scores(), masses(0.99, 0.99, 0.99, 0.99), [0])
    assert found.choice.tolist() == [0] and found.fallback == (None,)
    assert [(t.candidate, t.passed) for t in found.tests] == [(0, True)]
    assert found.lower_mass[0] >= CONFIG.tau


def test_a_failed_certificate_expands_to_the_next_budget_that_passes():
    found = run(scores(), masses(0.5, 0.6, 0.99, 0.99), [0])
    assert found.choice.tolist() == [2] and found.fallback == ("expand",)
    assert [(t.candidate, t.passed) for t in found.tests] == [(0, False), (1, False), (2, True)]


def test_after_s_failed_tests_the_unit_is_dense_and_carries_no_bound():
    found = run(scores(), masses(0.5, 0.5, 0.5, 0.99), [0])
    assert found.choice.tolist() == [4] and found.fallback == ("dense",)
    assert len(found.tests) == 3 and np.isnan(found.lower_mass[0])


def test_every_test_runs_at_error_one_minus_q_over_s():
    from routesparse.kernels.betting_bound import betting_lower_bound

    rows = masses(0.9, 0.9, 0.9, 0.9)
    for max_tests in (1, 3):
        found = run(scores(), rows, [0], replace(CONFIG, max_tests=max_tests))
        assert found.tests[0].lower_mass == betting_lower_bound(rows[0, :, 0], 0.05 / max_tests)


def test_the_configured_bound_decides():
    """128 rows of .95 pass tau = .9 by betting; empirical Bernstein is too wide for that."""
    rows = masses(0.95, 0.95, 0.95, 0.95)
    config = replace(CONFIG, tau=0.9)
    assert run(scores(), rows, [0], config).fallback == (None,)
    assert run(scores(), rows, [0], replace(config, bound="bernstein")).fallback == ("dense",)


def test_a_dense_choice_is_not_tested():
    found = run(scores(), masses(0.1, 0.1, 0.1, 0.1), [4])
    assert found.choice.tolist() == [4] and found.tests == () and found.fallback == (None,)


def test_without_fallback_nothing_escalates_and_the_bound_is_still_told():
    found = run(scores(), masses(0.5, 0.99, 0.99, 0.99), [0], replace(CONFIG, fallback=False))
    assert found.choice.tolist() == [0] and found.fallback == (None,)
    assert len(found.tests) == 1 and found.lower_mass[0] < CONFIG.tau


def test_the_order_is_fixed_before_any_certificate_row_is_read():
    """Whatever the certificate rows say, the tested candidates are a prefix of the routing rows' ladder."""
    s = scores()
    ladder = escalation(s, 0, 0, GATE, 3)
    g = np.random.default_rng(0)
    for _ in range(50):
        rows = np.clip(g.beta(3, 1, (1, ROWS, 5)) * g.uniform(0.5, 1, 5), 0, 1)
        tested = [t.candidate for t in run(s, rows, [0]).tests]
        assert tested == ladder[: len(tested)]


# The strict policy.


def test_strict_grants_the_largest_deficit_first_and_records_the_unmet():
    rows = masses(0.5, 0.99, 0.99, 0.99, units=3)
    rows[1, :, 0] = 0.3  # the largest deficit
    found = run(scores(units=3), rows, [0, 0, 0], STRICT, slack=15.0)
    assert found.choice.tolist() == [0, 1, 0]
    assert found.fallback == (None, "expand", None)
    assert found.unmet.tolist() == [True, False, True]


@pytest.mark.parametrize("slack", [0.0, 9.9, 10.0, 25.0, 60.0, 100.0, 500.0])
def test_strict_never_spends_more_than_is_left(slack):
    g = np.random.default_rng(1)
    for _ in range(30):
        s = scores(units=6)
        rows = np.clip(g.beta(4, 1, (6, ROWS, 5)) * g.uniform(0.4, 1, (6, 1, 5)), 0, 1)
        first = g.integers(0, 3, 6)
        found = run(s, rows, first, STRICT, slack)
        units = np.arange(6)
        spent = s.kernel_us[units, found.choice].sum() - s.kernel_us[units, first].sum()
        assert spent <= slack + 1e-9
        failing = [u for u in range(6) if found.choice[u] != 4 and found.lower_mass[u] < STRICT.tau]
        assert failing == np.flatnonzero(found.unmet).tolist()


def test_a_false_pass_is_as_rare_as_promised():
    """Every candidate's body mean lies just below tau: whatever passes is wrong, at most 5 % of units."""
    g = np.random.default_rng(2)
    units = 3_000
    rows = (g.random((units, ROWS, 5)) < 0.795).astype(float)
    rows[..., 4] = 1.0
    found = run(scores(units=units), rows, np.zeros(units, int))
    assert (found.choice != 4).mean() <= 0.05
