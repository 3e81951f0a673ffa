"""The conformal step simulated: as promised where prompts are exchangeable, less where documents cluster, broken where
the domain shifts, while the in-prompt certificate, which needs no other prompt, goes on holding. numpy only.
"""

import math

import numpy as np
import pytest

from routesparse.engine.calibration.artifact import conformal_delta
from routesparse.kernels.betting_bound import betting_lower_bound

REPETITIONS = 1_000
UNITS = 40
Q = 0.95


def residuals(rng, prompts, effect=0.0, document=None, shift=0.0):
    """g - g* of UNITS units per prompt: an effect per prompt (or per document), and noise."""
    shared = rng.normal(0, 1, prompts if document is None else document.max() + 1)
    place = np.arange(prompts) if document is None else document
    return shift + 0.004 * effect * shared[place][:, None] + 0.006 * rng.normal(size=(prompts, UNITS))


def coverage(draw, tested=20):
    """Mean over REPETITIONS calibrations of the coverage of new prompts: draw(rng) -> (calibration, test)."""
    rng = np.random.default_rng(0)
    shares = []
    for _ in range(REPETITIONS):
        made, new = draw(rng, tested)
        shares.append((new <= conformal_delta(list(made), Q)).mean())
    return float(np.mean(shares))


@pytest.mark.parametrize("prompts", [39, 100])
def test_with_one_unit_a_prompt_coverage_is_the_order_statistics_within_half_a_point(prompts):
    found = coverage(lambda rng, t: (residuals(rng, prompts)[:, :1], residuals(rng, t)))
    assert found == pytest.approx(math.ceil((prompts + 1) * Q) / (prompts + 1), abs=0.005)


@pytest.mark.parametrize("effect", [0.0, 1.0])
def test_with_many_units_a_prompt_coverage_is_at_least_nominal_and_close(effect):
    found = coverage(lambda rng, t: (residuals(rng, 100, effect), residuals(rng, t, effect)))
    assert Q - 0.005 <= found <= math.ceil(101 * Q) / 101 + 0.01


def test_windows_of_four_documents_promise_less_for_a_fifth():
    """Why documents are stated beside windows: 100 windows of 4 documents are not 100 prompts."""
    document = np.repeat(np.arange(4), 25)
    clustered = coverage(lambda rng, t: (residuals(rng, 100, 2.0, document), residuals(rng, t, 2.0)))
    single = coverage(lambda rng, t: (residuals(rng, 100, 2.0), residuals(rng, t, 2.0)))
    assert single >= Q - 0.005
    assert clustered < single - 0.02


def test_under_a_shift_the_conformal_claim_fails_and_the_in_prompt_one_holds():
    """Prompts whose probe flatters by .01 more than the calibration's; certificate rows of their own."""
    rng = np.random.default_rng(1)
    conformal = coverage(lambda r, t: (residuals(r, 100), residuals(r, t, shift=0.01)))
    assert conformal < 0.6
    true = 0.95
    rows = rng.beta(19 * true, 19 * (1 - true), (REPETITIONS, 128))
    assert (betting_lower_bound(rows, (1 - Q) / 3) <= true).mean() >= Q
