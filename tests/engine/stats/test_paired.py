"""Paired comparison of methods: against plain loops, known tables, and simulated truths. No GPU."""

import numpy as np
import pytest

from routesparse.engine.stats import paired

RNG = np.random.default_rng(0)


def simulated(effect, n=60, clusters=None):
    """Scores of two methods on two tasks; the other one's are ``effect`` higher in the mean."""
    base = {task: RNG.random(n) for task in ("a", "b")}
    other = {task: values + effect + 0.3 * RNG.standard_normal(n) for task, values in base.items()}
    labels = {task: [i // (clusters or 1) for i in range(n)] for task in base}
    return paired.Draws(labels, seed=1, resamples=2_000), other, base


def test_draw_zero_is_the_sample_and_others_are_a_cluster_bootstrap():
    """Against drawing clusters by hand: the same mean and spread."""
    values, labels = np.array([1.0, 2.0, 5.0, 9.0, 4.0]), ["x", "x", "y", "z", "z"]
    draws = paired.Draws({"t": labels}, seed=3, resamples=20_000)
    found = draws.means({"t": values})
    assert found[0] == pytest.approx(values.mean())
    groups, by_hand = [[1.0, 2.0], [5.0], [9.0, 4.0]], []
    for picks in RNG.integers(0, 3, (20_000, 3)):
        drawn = [value for pick in picks for value in groups[pick]]
        by_hand.append(np.mean(drawn))
    assert found[1:].mean() == pytest.approx(np.mean(by_hand), abs=0.03)
    assert found[1:].std() == pytest.approx(np.std(by_hand), rel=0.03)


def test_tasks_weigh_the_same_whatever_their_number_of_prompts():
    draws = paired.Draws({"a": range(2), "b": range(8)}, resamples=10)
    assert draws.means({"a": [1, 1], "b": [0] * 8})[0] == 0.5
    assert (draws.n, draws.clusters) == (10, 10)


def test_the_same_seed_gives_the_same_interval():
    draws, other, base = simulated(0.0)
    again = paired.Draws({task: range(60) for task in base}, seed=1, resamples=2_000)
    assert paired.difference(draws, other, base) == paired.difference(again, other, base)


@pytest.mark.parametrize("effect", [0.3, -0.3, 0.0])
def test_a_true_difference_is_found_and_none_is_not(effect):
    found = paired.difference(*simulated(effect))
    assert (found.mean.low > 0, found.mean.high < 0) == (effect > 0, effect < 0)
    assert (found.mean.p < 0.05) == (effect != 0)
    assert found.n == 120 and found.harmed + found.gained == 120 and not found.few and found.newcombe is None


def test_clusters_that_move_together_widen_the_interval():
    shared = np.repeat(RNG.standard_normal(12), 5)
    one, base = {"a": shared}, {"a": np.zeros(60)}
    single = paired.difference(paired.Draws({"a": range(60)}, resamples=2_000), one, base).mean
    whole = paired.difference(
        paired.Draws({"a": [i // 5 for i in range(60)]}, resamples=2_000), one, base
    ).mean
    assert whole.high - whole.low > 1.7 * (single.high - single.low)


def test_intervals_cover_the_truth_as_often_as_they_say():
    covered = 0
    for seed in range(200):
        rng = np.random.default_rng(seed)
        change = {"a": 0.1 + rng.standard_normal(80), "b": 0.3 + rng.standard_normal(80)}
        draws = paired.Draws({"a": range(80), "b": range(80)}, seed=seed, resamples=400)
        found = paired.difference(draws, change, {"a": np.zeros(80), "b": np.zeros(80)}).mean
        covered += found.low <= 0.2 <= found.high
    assert 0.89 <= covered / 200 <= 0.99


def test_the_worst_decile_is_found_inside_each_resample():
    """Against sorting every resample by hand, whole prompts only."""
    values = RNG.standard_normal(40)
    draws = paired.Draws({"a": range(40)}, seed=2, resamples=300)
    found = draws.worst_means({"a": values})
    for place in (0, 1, 17, 299):
        drawn = np.sort(np.repeat(values, draws.counts["a"][place].astype(int)))
        assert found[place] == pytest.approx(drawn[:4].mean())


def test_the_worst_decile_weighs_tasks_alike():
    draws = paired.Draws({"a": range(10), "b": range(90)}, resamples=5)
    found = draws.worst_means({"a": [-1.0] * 10, "b": [0.0] * 90}, share=0.5)
    assert found[0] == pytest.approx(-1.0)


def test_newcombe_s_published_example():
    """Newcombe 1998, Statistics in Medicine 17, 2635: 36, 12, 2, 0 by method 10."""
    assert paired.newcombe(36, 12, 2, 0) == pytest.approx((0.0569, 0.3404), abs=1e-4)
    low, high = paired.newcombe(36, 2, 12, 0)
    assert (-high, -low) == pytest.approx((0.0569, 0.3404), abs=1e-4)


def test_newcombe_of_no_discordant_pair_still_has_a_width():
    low, high = paired.newcombe(50, 0, 0, 0)
    assert low < 0 < high and -low == pytest.approx(high) and high < 0.11


def test_few_discordant_prompts_are_told():
    draws = paired.Draws({"a": range(50)}, resamples=100)
    base = np.ones(50)
    other = base.copy()
    other[:3] = 0
    found = paired.difference(draws, {"a": other}, {"a": base})
    assert found.few and (found.harmed, found.gained) == (3, 0)
    assert found.newcombe[0] < -0.06 < found.newcombe[1]


def test_holm_steps_down():
    """Holm's own rule: .01 * 4, .02 * 3, .03 * 2, .5; never falling."""
    found = paired.holm({"d": 0.5, "a": 0.01, "c": 0.03, "b": 0.02})
    assert found == pytest.approx({"d": 0.5, "a": 0.04, "c": 0.06, "b": 0.06})
    assert paired.holm({"a": 0.9, "b": 0.8})["a"] == 1.0


def test_perplexities_are_compared_over_whole_books():
    base = {"test": np.array([200.0, 400.0, 300.0])}
    other = {"test": base["test"] * 1.01}
    units = {"test": np.array([100, 200, 150])}
    found = paired.perplexity_ratio(paired.Draws({"test": "abc"}, resamples=500), other, base, units)
    assert found.value == pytest.approx(np.exp(0.02)) and found.low == pytest.approx(found.high)


def test_a_stratum_without_prompts_or_with_another_number_is_refused():
    with pytest.raises(ValueError, match="at least one prompt"):
        paired.Draws({"a": []})
    with pytest.raises(ValueError, match="a has 2 prompts"):
        paired.Draws({"a": range(2)}, resamples=5).means({"a": [1.0]})
