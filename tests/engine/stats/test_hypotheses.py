"""The five tests on simulated truths: what is there is found, what is not is left open. No GPU."""

import numpy as np
import pytest

from routesparse.engine.stats import hypotheses
from routesparse.engine.stats.paired import Arm, Draws

N = 80


def arm(rng, base, effect, time=1.0):
    return Arm(
        {task: values + effect + 0.2 * rng.standard_normal(N) for task, values in base.items()},
        {task: time * (1 + 0.02 * rng.random(N)) for task in base},
    )


def contrast(seed, gain):
    """Our scores lie ``gain`` above the rival's at our time; its two settings take .9 and 1.1 of it."""
    rng = np.random.default_rng(seed)
    base = {task: rng.random(N) for task in ("vt", "fwe")}
    draws = Draws({task: range(N) for task in base}, seed=seed, resamples=1_000)
    rivals = [arm(rng, base, effect, time) for effect, time in ((-0.05, 0.9), (0.05, 1.1))]
    return hypotheses.Contrast(draws, arm(rng, base, gain), rivals)


def all_tests(gain, shifted, worst):
    scores, likelihoods = contrast(5, gain), contrast(6, worst)
    plain = contrast(1, gain)
    shifts = {f"H2 {kind}": contrast(2 + i, shifted) for i, kind in enumerate(("domain", "length", "both"))}
    return hypotheses.verdicts(
        {
            "H1": [plain.gain()],
            **{name: [hypotheses.shift_gain(plain, one)] for name, one in shifts.items()},
            "H3": hypotheses.fallback_gains(scores, likelihoods),
        }
    )


def test_effects_that_are_there_are_supported():
    found = all_tests(0.3, 0.6, 0.5)
    assert tuple(found) == hypotheses.TESTS
    assert {result.verdict for result in found.values()} == {"supported"}
    assert found["H1"].estimates[0].value == pytest.approx(0.3, abs=0.06)
    assert found["H2 both"].estimates[0].value == pytest.approx(0.3, abs=0.08)


def test_harm_is_rejected_and_nothing_is_left_open():
    harmed = all_tests(-0.3, -0.6, -0.5)
    assert {result.verdict for result in harmed.values()} == {"rejected"}
    found = all_tests(0.0, 0.0, 0.0)
    assert {result.verdict for result in found.values()} == {"not resolved"}


def test_both_parts_of_the_third_hypothesis_must_hold():
    found = all_tests(0.3, 0.6, -0.5)["H3"]
    assert [part.verdict for part in found.estimates] == ["supported", "rejected"]
    assert found.verdict == "not resolved"


def test_a_test_that_holds_alone_may_not_hold_among_five():
    rng = np.random.default_rng(0)
    weak = np.concatenate([[0.2], 0.2 + 0.098 * rng.standard_normal(4_000)])
    noise = {f"n{i}": [np.concatenate([[0.0], rng.standard_normal(4_000)])] for i in range(4)}
    assert hypotheses.verdicts({"weak": [weak]})["weak"].verdict == "supported"
    among = hypotheses.verdicts({"weak": [weak], **noise})["weak"]
    assert among.verdict == "not resolved" and among.p == pytest.approx(5 * among.estimates[0].p)
