"""Rank statistics under resampling weights, against scipy and against plain loops over the repeated observations."""

import numpy as np
import pytest
from scipy import stats

from routesparse.engine.stats.detection import area_under_curve, detected, spearman

N, RESAMPLES = 60, 25


@pytest.fixture
def sample():
    """Numbers with ties, what they foretell in part, and weights of which the first row is 1."""
    rng = np.random.default_rng(5)
    x = rng.integers(0, 12, N).astype(float)
    y = x + rng.normal(0, 4, N).round()
    drawn = rng.multinomial(N, np.full(N, 1 / N), size=RESAMPLES)
    return x, y, y > 9, np.vstack([np.ones(N), drawn])


def repeated(values, weights):
    return np.repeat(values, weights.astype(int))


def plain_area(x, positive):
    pairs = [(a > b) + (a == b) / 2 for a in x[positive] for b in x[~positive]]
    return np.mean(pairs)


def test_spearman_is_scipys_of_the_repeated_observations(sample):
    x, y, _, weights = sample
    wanted = [stats.spearmanr(repeated(x, w), repeated(y, w)).statistic for w in weights]
    assert np.allclose(spearman(x, y, weights), wanted)


def test_the_area_is_the_share_of_pairs_in_order(sample):
    x, _, positive, weights = sample
    wanted = [plain_area(repeated(x, w), repeated(positive, w)) for w in weights]
    assert np.allclose(area_under_curve(x, positive, weights), wanted)


def test_the_curve_is_the_best_threshold_that_the_false_alarms_allow(sample):
    x, _, positive, weights = sample

    def plain(x, positive, share):
        allowed = [t for t in (*x, np.inf) if (x[~positive] >= t).mean() <= share]
        return max((x[positive] >= t).mean() for t in allowed)

    for share in (0.0, 0.05, 0.2, 1.0):
        wanted = [plain(repeated(x, w), repeated(positive, w), share) for w in weights]
        assert np.allclose(detected(x, positive, weights, share), wanted)
    assert detected(x, positive, weights, 1.0).tolist() == [1.0] * len(weights)


def test_within_groups_a_difference_between_groups_is_no_foresight():
    """x tells the groups apart and nothing else: pooled it looks good, within groups it is chance."""
    rng = np.random.default_rng(0)
    groups = np.repeat([0, 1], 400)
    x = 10.0 * groups + rng.normal(size=800)
    lost = rng.random(800) < np.where(groups == 1, 0.8, 0.1)
    nats = 5.0 * groups + rng.normal(size=800)
    one = np.ones((1, 800))
    assert area_under_curve(x, lost, one)[0] > 0.8 and spearman(x, nats, one)[0] > 0.6
    assert area_under_curve(x, lost, one, groups)[0] == pytest.approx(0.5, abs=0.06)
    assert spearman(x, nats, one, groups)[0] == pytest.approx(0.0, abs=0.1)


def test_what_is_undefined_is_not_a_number():
    one, x = np.ones((1, 4)), np.arange(4.0)
    assert np.isnan(spearman(x, np.zeros(4), one)[0])
    assert np.isnan(area_under_curve(x, np.zeros(4, dtype=bool), one)[0])
    assert np.isnan(detected(x, np.ones(4, dtype=bool), one, 0.1)[0])
