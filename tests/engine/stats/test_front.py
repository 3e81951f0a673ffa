"""The front and the cheapest setting against their definitions, pair by pair. No GPU."""

from __future__ import annotations

import numpy as np
import pytest

from routesparse.engine.stats.front import cheapest_within, closest, front

NAN = float("nan")


@pytest.mark.parametrize("seed", range(20))
def test_the_front_is_what_no_other_setting_beats(seed):
    random = np.random.default_rng(seed)
    cost, error = random.integers(0, 5, (2, 9)).astype(float)  # few values, so that many are equal
    error[random.random(9) < 0.2] = NAN
    beaten = [
        any(
            c <= cost[i] and e <= error[i] and (c < cost[i] or e < error[i])
            for c, e in zip(cost, error, strict=True)
        )
        for i in range(9)
    ]
    assert front(cost, error).tolist() == [
        bool(np.isfinite(e)) and not b for e, b in zip(error, beaten, strict=True)
    ]


def test_the_cheapest_setting_is_strictly_below_the_error():
    cost, error = [0.4, 0.2, 0.1, 0.05], [0.001, 0.01, 0.01, 0.2]
    assert cheapest_within(cost, error, 0.0101) == 2
    assert cheapest_within(cost, error, 0.01) == 0
    assert cheapest_within(cost, error, 0.001) is None and closest(cost, error) == 0


def test_what_was_not_measured_is_never_named():
    assert cheapest_within([0.1, NAN, 0.3], [NAN, 0.0, 0.01], 1.0) == 2
    assert cheapest_within([0.1], [NAN], 1.0) is None and closest([0.1], [NAN]) is None
    assert front([], []).tolist() == [] and closest([], []) is None


def test_of_equally_cheap_settings_the_better_one_is_named():
    assert cheapest_within([0.2, 0.2], [0.009, 0.004], 0.01) == 1
    assert closest([0.3, 0.2], [0.004, 0.004]) == 1
