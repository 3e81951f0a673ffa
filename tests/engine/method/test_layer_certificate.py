"""The layer's certificate and ladders that spend no error twice: exact expectations, scalar twins, simulations.

CPU only. Simulations are seeded; a check fails only where chance would exceed it in one of 10,000 seeds.
"""

import itertools
import math

import numpy as np
import pytest
import torch
from scipy.stats import binom

from routesparse.engine.method.certificate import kept_rung, stepwise_lower_mass
from routesparse.engine.method.layer_certificate import (
    centres_and_bets,
    layer_lower_mass,
    layer_passes,
    log_wealth,
)
from routesparse.kernels.betting_bound import betting_lower_bound

TAU, ERROR = 0.9, 0.05
HEADS, ROWS = 8, 128
REPETITIONS = 1_000


def most_misses(repetitions, error=ERROR):
    return binom.ppf(1 - 1e-4, repetitions, error)


def beta(g, means, concentration, repetitions=REPETITIONS, rows=ROWS):
    """Masses [repetitions, heads, rows] of heads with these means; a mean of 1 is a dense head's."""
    means = np.minimum(np.asarray(means), 1 - 1e-9)[:, None]
    size = (repetitions, len(means), rows)
    return g.beta(
        np.broadcast_to(means * concentration, size), np.broadcast_to((1 - means) * concentration, size)
    )


def bernoulli(g, means, low=0.0, high=1.0, repetitions=REPETITIONS, rows=ROWS):
    """Two points, low and high, with these means."""
    share = (np.asarray(means)[:, None] - low) / (high - low)
    return np.where(g.random((repetitions, len(share), rows)) < share, high, low)


HALVES = np.where(np.arange(HEADS) % 2, 1.0, 0.8)
# Layers whose mean is tau exactly: the boundary at which a pass is an error.
BOUNDARY = {
    "two-points-alike": lambda g: bernoulli(g, np.full(HEADS, TAU)),
    "two-points-halves": lambda g: bernoulli(g, HALVES),
    "two-points-one-bad-head": lambda g: bernoulli(g, [0.2] + [1.0] * (HEADS - 1)),
    "two-points-rare-zero": lambda g: bernoulli(g, np.full(HEADS, TAU), 0.0, 0.91),
    "two-points-rare-one": lambda g: bernoulli(g, np.full(HEADS, TAU), 0.89, 1.0),
    "beta-alike": lambda g: beta(g, np.full(HEADS, TAU), 14),
    "beta-halves": lambda g: beta(g, HALVES, 14),
    "beta-spread": lambda g: beta(g, np.linspace(0.81, 0.99, HEADS), 8),
    "constants-halves": lambda g: np.broadcast_to(HALVES[:, None], (REPETITIONS, HEADS, ROWS)).copy(),
}


def layer_by_hand(x, error):
    """One layer, plain loops: every round's centres, then its bet, from the rounds before; the wealth's maximum."""
    heads, rows = len(x), len(x[0])

    def rejected(mu):
        wealth, best = 0.0, -math.inf
        total, squares, seen = 0.5, 0.25, 1
        ahead = [0.0] * heads
        for j in range(rows):
            centre = [a / (j + 1) for a in ahead]
            variance = max(squares / seen, 1e-12)
            bet = math.sqrt(2 * math.log(1 / error) / (heads * rows * variance))
            bet = min(bet, 0.98 / (mu + max(centre)))
            wealth += sum(math.log1p(bet * (x[h][j] - mu - centre[h])) for h in range(heads))
            best = max(best, wealth)
            rest = [x[h][j] - centre[h] for h in range(heads)]
            total += sum(rest)
            seen += heads
            squares += sum((r - total / seen) ** 2 for r in rest)
            average = sum(x[h][j] for h in range(heads)) / heads
            ahead = [ahead[h] + x[h][j] - average for h in range(heads)]
        return best >= math.log(1 / error)

    low, high = 0.0, 1.0
    for _ in range(40):
        middle = (low + high) / 2
        low, high = (middle, high) if rejected(middle) else (low, middle)
    return low


@pytest.mark.parametrize("heads", [1, 3, 8])
def test_the_layer_bound_equals_a_scalar_twin(heads):
    g = np.random.default_rng(0)
    for x in (
        beta(g, np.linspace(0.7, 0.99, heads), 8, 2, 33),
        bernoulli(g, np.full(heads, 0.95), 0.0, 1.0, 2, 33),
    ):
        found = layer_lower_mass(x, ERROR)
        wanted = [layer_by_hand(layer.tolist(), ERROR) for layer in x]
        np.testing.assert_allclose(found, wanted, atol=2e-7)


def test_the_bound_of_one_head_is_the_betting_bound():
    x = beta(np.random.default_rng(0), [0.93], 8, 200)
    np.testing.assert_allclose(layer_lower_mass(x, ERROR), betting_lower_bound(x[:, 0], ERROR), atol=1.2e-7)


@pytest.mark.parametrize("means", [(0.5, 0.5), (0.2, 0.8), (0.1, 1.0)], ids=str)
def test_the_wealth_expects_at_most_one_after_every_round(means):
    """Every outcome of two heads, four rounds, two points, weighted by its probability: no simulation."""
    outcomes = np.array(list(itertools.product((0.0, 1.0), repeat=8))).reshape(-1, 2, 4)
    share = np.asarray(means)[None, :, None]
    weight = np.where(outcomes == 1.0, share, 1 - share).prod((1, 2))
    mean = np.full(len(outcomes), np.mean(means))
    # A large error makes small bets, a small one bets at the cap.
    for error in (0.5, 0.05, 1e-4):
        path = np.exp(log_wealth(outcomes, mean, *centres_and_bets(outcomes, error)))
        assert (weight @ path <= 1 + 1e-12).all()
        assert weight @ (path.max(-1) >= 1 / error) <= error


@pytest.mark.parametrize("name", BOUNDARY)
def test_a_layer_at_tau_passes_no_more_often_than_promised(name):
    x = BOUNDARY[name](np.random.default_rng(1))
    assert layer_passes(x, TAU, ERROR).sum() <= most_misses(REPETITIONS)


@pytest.mark.parametrize("name", ["two-points-alike", "two-points-one-bad-head", "beta-spread"])
def test_passing_says_that_the_bound_reaches_tau(name):
    x = BOUNDARY[name](np.random.default_rng(2))[:200]
    bound = layer_lower_mass(x, ERROR)
    for tau in (0.86, 0.88, 0.9):
        clear = np.abs(bound - tau) > 1e-6
        assert (layer_passes(x, tau, ERROR) == (bound >= tau))[clear].all()


def test_the_resolution_is_shared_by_all_heads():
    """ln(1/error) / (H C), up to the cap on bets and the first rounds, where the variance is unknown."""
    for heads in (1, 8, 32):
        lost = 1 - layer_lower_mass(np.ones((heads, ROWS)), ERROR)
        assert lost * heads * ROWS == pytest.approx(math.log(1 / ERROR), rel=0.15)


def test_what_heads_differ_by_costs_nothing():
    """Constant heads at .8 and 1: within .005 of the layer's mean, as for heads that are all alike."""
    x = np.broadcast_to(HALVES[:, None], (HEADS, ROWS)).copy()
    assert 0.9 - layer_lower_mass(x, ERROR) < 0.005
    assert layer_lower_mass(x, ERROR) == pytest.approx(
        layer_lower_mass(np.full_like(x, 0.9), ERROR), abs=0.001
    )


def test_a_layer_of_eight_heads_passes_a_hundredth_above_tau():
    """Where one head of the same masses hardly ever does, and passes only three hundredths above."""
    x = beta(np.random.default_rng(3), np.linspace(0.83, 0.99, HEADS), 14)
    assert x.mean() == pytest.approx(0.91, abs=1e-3)
    assert layer_passes(x, TAU, ERROR).mean() > 0.95
    head = beta(np.random.default_rng(3), [0.91], 14)
    assert layer_passes(head, TAU, ERROR).mean() < 0.1


@pytest.mark.parametrize("x", [np.full((2, 3), 1.1), np.full((2, 1), 0.5), np.full((2, 3), np.nan)])
def test_values_that_are_no_masses_are_refused(x):
    for function in (
        lambda x: layer_lower_mass(x, ERROR),
        lambda x: layer_passes(x, TAU, ERROR),
    ):
        with pytest.raises(ValueError, match="at least two rows with masses"):
            function(x)


def test_a_tensor_gets_what_an_array_gets():
    g = np.random.default_rng(6)
    x = np.stack([beta(g, np.linspace(0.8, 1.0, HEADS), c, 40) for c in (3, 14, 100)])
    tensor = torch.from_numpy(x)
    assert layer_lower_mass(x, ERROR).shape == (3, 40)
    np.testing.assert_allclose(
        layer_lower_mass(tensor, ERROR).numpy(), layer_lower_mass(x, ERROR), atol=1.2e-7
    )
    assert (layer_passes(tensor, 0.89, ERROR).numpy() == layer_passes(x, 0.89, ERROR)).all()
    bounds = layer_lower_mass(x, ERROR).T
    assert (kept_rung(torch.from_numpy(bounds >= 0.89)).numpy() == kept_rung(bounds >= 0.89)).all()
    found = stepwise_lower_mass(torch.from_numpy(bounds), 0.89).numpy()
    np.testing.assert_array_equal(found, stepwise_lower_mass(bounds, 0.89))


# Ladders.


def test_the_kept_rung_passes_with_every_dearer_one():
    passed = np.array([[1, 1, 1], [0, 1, 1], [1, 0, 1], [1, 1, 0], [0, 0, 0]], bool)
    assert kept_rung(passed).tolist() == [0, 1, 2, 3, 3]


def test_what_is_claimed_of_the_kept_rung():
    bounds = np.array([[0.92, 0.91, 0.95], [0.8, 0.93, 0.95], [0.95, 0.8, 0.92], [0.95, 0.95, 0.8]])
    np.testing.assert_array_equal(stepwise_lower_mass(bounds, 0.9), [0.91, 0.9, 0.9, np.nan])
    missing = np.array([[0.92, np.inf, np.inf], [0.8, 0.95, np.inf], [0.95, 0.8, np.inf], [np.inf] * 3])
    np.testing.assert_array_equal(stepwise_lower_mass(missing, 0.9), [0.92, 0.9, np.nan, np.nan])
    assert kept_rung(missing >= 0.9).tolist() == [0, 1, 2, 0]


def ladder(g, means, nested, heads=4, rows=64, repetitions=1_000):
    """Masses [repetitions, levels, heads, rows], two points a row: nested levels share their rows' losses."""
    shape = (repetitions, 1 if nested else len(means), heads, rows)
    draws = np.broadcast_to(g.random(shape), (repetitions, len(means), heads, rows))
    return np.where(draws < np.asarray(means)[:, None, None], 1.0, 0.0)


# True means of a ladder, cheapest first; all but the last are wrong to keep, by little or by much.
LADDERS = [(0.9, 0.9, 0.9), (0.88, 0.9 - 1e-9, 0.97), (0.8, 0.89, 0.9 - 1e-9)]


@pytest.mark.parametrize("means", LADDERS, ids=str)
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "crossing"])
def test_any_ladder_may_be_tested_at_the_full_error_from_its_dear_end(means, nested):
    x = ladder(np.random.default_rng(7), means, nested)
    kept = kept_rung(layer_passes(x, TAU, ERROR))
    wrong = np.append(np.array(means) <= TAU, False)
    assert wrong[kept].sum() <= most_misses(len(x))


@pytest.mark.parametrize("means", [*LADDERS, (0.9, 0.95, 0.99), (0.93, 0.93, 0.93)], ids=str)
@pytest.mark.parametrize("nested", [True, False], ids=["nested", "crossing"])
def test_what_is_claimed_of_the_kept_rung_is_seldom_above_its_mean(means, nested):
    x = ladder(np.random.default_rng(10), means, nested, heads=2, rows=64, repetitions=500)
    bounds = layer_lower_mass(x, ERROR)
    rung, claim = kept_rung(bounds >= TAU), stepwise_lower_mass(bounds, TAU)
    mean = np.append(np.array(means) - 1e-12, np.nan)[rung]
    assert (np.isnan(claim) == np.isnan(mean)).all()
    assert (claim > mean + 1e-9).sum() <= most_misses(len(x))
