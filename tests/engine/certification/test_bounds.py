"""The bounds keep their confidence, also where heads differ as much as they can. Simulations on a CPU."""

import numpy as np
import pytest

from routesparse.engine.certification.bounds import least_mean, most_mean, most_share, share_within_largest

ERROR = 0.05
DRAWS = 2_000
# Three standard errors of the share of wrong claims, should exactly 5 % of them be wrong.
ALLOWED = ERROR + 3 * (ERROR * (1 - ERROR) / DRAWS) ** 0.5
HEADS, ROWS = 6, 20


def shares(kind):
    """Each head's share of rows with the property."""
    return {
        "equal": np.full(HEADS, 0.04),
        "one head": np.array([0.2, 0, 0, 0, 0, 0]),
        "whole heads": np.array([1.0, 0, 0, 0, 0, 0]),
        "mixed": np.array([0.5, 0.3, 0.1, 0.02, 0.0, 0.0]),
    }[kind]


@pytest.mark.parametrize("kind", ["equal", "one head", "whole heads", "mixed"])
def test_a_share_is_bounded_where_heads_differ(kind):
    share, rng = shares(kind), np.random.default_rng(0)
    counts = (rng.random((DRAWS, HEADS, ROWS)) < share[:, None]).sum((1, 2))
    bounds = np.array([most_share(int(count), HEADS * ROWS, ERROR) for count in counts])
    assert (share.mean() > bounds).mean() <= ALLOWED


def test_no_row_seen_leaves_the_share_that_the_largest_error_leaves():
    assert most_share(0, 128, ERROR) == pytest.approx(1 - share_within_largest(128, ERROR))
    assert most_share(0, 128, ERROR) == pytest.approx(1 - 0.05 ** (1 / 128))
    assert most_share(128, 128, ERROR) == 1.0


@pytest.mark.parametrize("tail", [0.005, 0.03, 0.2])
def test_the_largest_error_seen_covers_its_share_of_all_rows(tail):
    """Heads with errors of very different sizes; a share ``tail`` of one head's rows is far off."""
    rng = np.random.default_rng(1)
    population = rng.random((HEADS, 2_000)) * np.arange(1, HEADS + 1)[:, None]
    population[0, : int(2_000 * min(1.0, tail * HEADS))] += 100.0
    wrong = 0
    for _ in range(DRAWS):
        seen = np.take_along_axis(population, rng.integers(0, 2_000, (HEADS, ROWS)), 1).max()
        wrong += (population <= seen).mean() < share_within_largest(HEADS * ROWS, ERROR)
    assert wrong / DRAWS <= ALLOWED


def test_the_claim_about_the_largest_error_has_no_room():
    """Where the errors of all rows differ, it is wrong about as often as it may be: a wider claim would fail."""
    rng, population = np.random.default_rng(2), np.arange(100_000)
    wrong = 0
    for _ in range(DRAWS):
        seen = rng.choice(population, 100).max()
        wrong += (seen + 1) / len(population) < share_within_largest(100, ERROR)
    assert 0.03 < wrong / DRAWS <= ALLOWED


@pytest.mark.parametrize("heads", [1, HEADS])
def test_means_are_bounded_on_both_sides(heads):
    rng = np.random.default_rng(3)
    rates = np.linspace(0.02, 0.4, heads)
    low = high = 0
    for _ in range(400):
        x = (rng.random((heads, 40)) < rates[:, None]).astype(float)
        assert least_mean(x, ERROR) <= x.mean() + 1e-12 and x.mean() - 1e-12 <= most_mean(x, ERROR)
        low += least_mean(x, ERROR) > rates.mean()
        high += most_mean(x, ERROR) < rates.mean()
    assert low / 400 <= ERROR and high / 400 <= ERROR
