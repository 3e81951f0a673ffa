"""The three claims about retained mass and eq. 5's error bounds: simulated, against scalar twins, and on real rows.

CPU only. Simulations are seeded; a check fails only where chance would exceed it in one of 10,000 seeds.
"""

import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from routesparse.engine.method.certificate import (
    bernstein_lower_bound,
    conformal_lower_mass,
    in_prompt_lower_mass,
    paper_error_bound,
    row_lower_bound,
    tight_error_bound,
)
from routesparse.kernels.betting_bound import betting_lower_bound

ROWS = 128
REPETITIONS = 2_500

# name: (draw of shape [repetitions, rows], true mean)
DISTRIBUTIONS = {
    "bernoulli-.5": (lambda g, s: g.random(s) < 0.5, 0.5),
    "bernoulli-.9": (lambda g, s: g.random(s) < 0.9, 0.9),
    "bernoulli-.98": (lambda g, s: g.random(s) < 0.98, 0.98),
    "bernoulli-.995": (lambda g, s: g.random(s) < 0.995, 0.995),
    # Two points of which the bad one is seldom seen: the worst case of a bound on a mean.
    "two-points-.2-1-at-1%": (lambda g, s: np.where(g.random(s) < 0.01, 0.2, 1.0), 0.992),
    "two-points-0-.95-at-2%": (lambda g, s: np.where(g.random(s) < 0.02, 0.0, 0.95), 0.931),
    "two-points-.85-.95": (lambda g, s: np.where(g.random(s) < 0.5, 0.85, 0.95), 0.9),
    "uniform": (lambda g, s: g.random(s), 0.5),
    "beta-20-1": (lambda g, s: g.beta(20, 1, s), 20 / 21),
    "beta-.5-.05": (lambda g, s: g.beta(0.5, 0.05, s), 0.5 / 0.55),
}


def draws(name, seed=0, rows=ROWS):
    draw, mean = DISTRIBUTIONS[name]
    return np.asarray(draw(np.random.default_rng(seed), (REPETITIONS, rows)), float), mean


@pytest.mark.parametrize(
    ("bound", "error"),
    [(betting_lower_bound, 0.05), (betting_lower_bound, 0.05 / 3), (bernstein_lower_bound, 0.05)],
    ids=["one-test", "three-tests", "bernstein"],
)
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_a_bound_misses_the_mean_no_more_often_than_promised(name, bound, error):
    x, mean = draws(name)
    assert int((bound(x, error) > mean).sum()) <= binom.ppf(1 - 1e-4, REPETITIONS, error)


def betting_by_hand(x, error):
    """One sample, plain loops: rows in order, bets from the rows before, the wealth's running maximum."""
    count = len(x)

    def rejected(mu):
        log_wealth, best = 0.0, -math.inf
        total, squares = 0.5, 0.25
        for i in range(count):
            variance = max(squares / (i + 1), 1e-12)
            bet = min(math.sqrt(2 * math.log(1 / error) / (count * variance)), 0.98 / max(mu, 1e-12))
            log_wealth += math.log1p(bet * (x[i] - mu))
            best = max(best, log_wealth)
            total += x[i]
            squares += (x[i] - total / (i + 2)) ** 2
        return best >= math.log(1 / error)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


@pytest.mark.parametrize("rows", [8, 33, 128])
@pytest.mark.parametrize("name", DISTRIBUTIONS)
def test_the_betting_bound_equals_a_scalar_twin(name, rows):
    x, _ = draws(name, rows=rows)
    for error in (0.05, 0.01):
        found = betting_lower_bound(x[:4], error)
        wanted = [betting_by_hand(list(map(float, row)), error) for row in x[:4]]
        np.testing.assert_allclose(found, wanted, atol=2e-7)


@pytest.mark.parametrize(
    ("name", "function"), [("betting", betting_lower_bound), ("bernstein", bernstein_lower_bound)]
)
def test_either_bound_spends_a_third_of_the_error_on_each_of_three_tests(name, function):
    x = np.random.default_rng(0).beta(20, 1, (4, ROWS))
    assert (in_prompt_lower_mass(x, 0.95, 3, name) == function(x, (1 - 0.95) / 3)).all()


@pytest.mark.parametrize("error", [0.05, 0.05 / 3, 0.001])
def test_either_bound_of_a_tensor_is_the_arrays(error):
    g = np.random.default_rng(0)
    x = np.concatenate(
        [g.beta(a, 1, (20, ROWS)) for a in (0.3, 2, 40)] + [np.ones((1, ROWS)), np.zeros((1, ROWS))]
    )
    found = betting_lower_bound(torch.from_numpy(x), error)
    # The two libraries round a logarithm differently, which may move a bound by one bisection.
    np.testing.assert_allclose(found.numpy(), betting_lower_bound(x, error), atol=1.2e-7)
    found = bernstein_lower_bound(torch.from_numpy(x), error)
    np.testing.assert_allclose(found.numpy(), bernstein_lower_bound(x, error), atol=1e-12)


@pytest.mark.parametrize(
    "x", [[0.5], [0.5, 1.1], [-0.1, 0.5], [np.nan, 0.5]], ids=["one-row", "above-1", "below-0", "nan"]
)
@pytest.mark.parametrize(
    ("bound", "level"),
    [(betting_lower_bound, 0.05), (bernstein_lower_bound, 0.05), (row_lower_bound, 0.9)],
    ids=["betting", "bernstein", "row"],
)
def test_values_that_are_no_masses_are_refused(bound, level, x):
    with pytest.raises(ValueError, match=r"at least two rows with masses in \[0, 1\]"):
        bound(np.array(x), level)


# The row statement.


@pytest.mark.parametrize("confidence", [0.9, 0.95, 0.99])
@pytest.mark.parametrize("name", ["uniform", "beta-20-1", "beta-.5-.05", "bernoulli-.98"])
def test_a_further_body_row_lies_above_the_row_bound_as_often_as_promised(name, confidence):
    draw, _ = DISTRIBUTIONS[name]
    g = np.random.default_rng(1)
    x = np.asarray(draw(g, (20_000, ROWS + 1)), float)
    below = int((x[:, -1] < row_lower_bound(x[:, :-1], confidence)).sum())
    assert below <= binom.ppf(1 - 1e-4, 20_000, 1 - confidence)


def test_the_row_bound_is_the_kth_smallest_row():
    x = np.random.default_rng(0).random(ROWS)
    assert row_lower_bound(x, 0.95) == np.sort(x)[math.floor(0.05 * 129) - 1]
    assert row_lower_bound(x, 0.95) > row_lower_bound(x, 0.99)


def test_too_few_rows_promise_nothing_about_a_row():
    assert row_lower_bound(np.full(10, 0.9), 0.95) == 0.0


# Claim 2 and eq. 5.


def test_the_conformal_mass_is_the_gate_less_delta_within_zero_and_one():
    gate = np.array([0.0, 0.5, 0.97, 1.0])
    np.testing.assert_allclose(conformal_lower_mass(gate, 0.1), [0.0, 0.4, 0.87, 0.9])
    assert (conformal_lower_mass(gate, math.inf) == 0).all()


def test_error_bounds_fall_in_mass_and_vanish_when_nothing_is_omitted():
    mass = np.linspace(0, 1, 11)
    paper = paper_error_bound(mass, np.float64(3.0))
    tight = tight_error_bound(mass, np.full(11, 2.0), np.float64(3.0))
    assert (np.diff(paper) < 0).all() and (np.diff(tight) < 0).all()
    assert paper[-1] == tight[-1] == 0
    assert (tight <= paper).all()


def test_error_bounds_hold_on_every_real_row_and_the_tight_one_is_tighter(oracle, lab):
    """float64 on the lab checkpoint's own queries, keys and values: 2 prompts x 3 layers x 8 heads x 64 rows x 2."""
    g = torch.Generator().manual_seed(0)
    checked = 0
    for kind in ("prose", "needle"):
        for layer, inputs in list(lab.layers(kind).items())[1::3]:
            segment, _, _, candidates, indices = oracle.step_one_and_two(inputs, lab.config, layer=layer)
            rows = torch.randint(0, segment.body, (64,), generator=g).unique()
            weights, _ = oracle.softmax(inputs, rows)
            values = inputs.v.double().repeat_interleave(inputs.groups, 1)
            v_max = values.norm(dim=-1).amax(-1, keepdim=True).numpy()
            exact = weights @ values
            for place in (layer % 4, 4 + layer % (len(candidates) - 5)):
                plan = oracle.plan_of_candidate(inputs, segment, candidates, indices, place)
                kept = weights * plan.to_mask()[:, :, rows]
                mass = kept.sum(-1)
                sparse = kept @ values / mass.unsqueeze(-1)
                error = (exact - sparse).norm(dim=-1).numpy()
                paper = paper_error_bound(mass.numpy(), v_max)
                tight = tight_error_bound(mass.numpy(), sparse.norm(dim=-1).numpy(), v_max)
                assert (error <= tight + 1e-9).all()
                assert (tight <= paper + 1e-9).all()
                checked += error.size
    assert checked >= 2_500
