"""The study of a kept target on a bundled fit: halves share no document, and arms differ as they should."""

import pytest

from routesparse.engine.calibration import fitted
from routesparse.engine.lab.studies import keeping


@pytest.fixture(scope="module")
def halved():
    return keeping.halves(fitted.load("Qwen2.5-Coder-1.5B-Instruct"), seed=3)


def test_no_served_document_is_in_the_fit(halved):
    fit, windows = halved
    for kind, documents in windows.items():
        known = {one.cluster for one in fit.of(kind)}
        assert len(known) == len(documents) == 12 and not known & set(documents)


def test_the_keeper_is_near_the_target_in_each_third_and_a_fixed_price_is_not(halved):
    kept, fixed, bound = (keeping.served(*halved, 0.005, arm, 3) for arm in ("kept", "mean", "bound"))
    assert all(0.75 < one < 1.25 for one in (kept["all"], *kept["last"]))
    assert fixed["last"][1] < 0.75 and bound["all"] < 0.3
    assert len(set(fixed["prices"])) == 1 and len(set(kept["prices"])) > 5


def test_a_loss_between_two_prices_is_interpolated_in_logarithms():
    at = keeping.np.array([0.1, 0.4])
    assert keeping._at(0.2, at, keeping.np.array([0.001, 0.004])) == pytest.approx(0.002)
