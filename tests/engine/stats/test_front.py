"""The front against its definition, pair by pair. No GPU."""

from __future__ import annotations

import numpy as np
import pytest

from routesparse.engine.stats.front import front

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
    assert front([], []).tolist() == []
