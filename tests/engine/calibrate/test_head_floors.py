"""Floors by head: equal gains where curves differ, nothing where they don't; measured on a model. CPU."""

import numpy as np
import pytest
import torch

from routesparse.engine.calibrate import head_floors as hf
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.layer import with_head_floors
from routesparse.engine.errors import ConfigError

PRICES = np.array(hf.PRICES).reshape(-1, 1, 1)
WEIGHT = np.array([[1.0, 10.0], [0.1, 1.0]])


def curves(factor=1.0):
    """Loss and area [P, 2, 2] of power laws: a floor counts as the price times the head's factor."""
    price = PRICES * factor
    return price**1.5 * np.array([[1.0, 1.0], [1.0, 4.0]]), 0.1 * price**-0.6 * np.ones((2, 2))


def test_the_same_area_costs_less_where_the_heavy_heads_read_more(monkeypatch):
    monkeypatch.setattr(hf, "SHRUNK", 1.0)
    lost, area = curves()
    floors = hf.head_floors(lost, area, WEIGHT)
    assert floors[0, 1] < floors[1, 1] < floors[0, 0] < floors[1, 0]
    after, area_after = curves(np.exp(floors))
    at = hf.PRICES.index(hf.KEPT_PRICE)
    assert area_after[at].mean() == pytest.approx(area[at].mean(), rel=0.02)
    assert (after[at] * WEIGHT).sum() < 0.8 * (lost[at] * WEIGHT).sum()
    gain = (after[at] * WEIGHT) / area_after[at]  # dD/dA of power laws with the same exponents
    assert gain.max() / gain.min() < 1.2


def test_heads_that_are_alike_keep_their_floor_and_the_answer_is_halved(monkeypatch):
    lost, area = curves()
    assert np.abs(hf.head_floors(np.ones_like(lost) * PRICES**1.5, area, np.ones((2, 2)))).max() < 0.02
    half = hf.head_floors(lost, area, WEIGHT)
    monkeypatch.setattr(hf, "SHRUNK", 1.0)
    np.testing.assert_allclose(hf.head_floors(lost, area, WEIGHT), 2 * half)


@pytest.mark.parametrize("floors", [((0.0,) * 4,), ((0.0, 0.0),) * 2, ()])
def test_floors_of_another_model_are_refused(floors):
    with pytest.raises(ConfigError, match="use this model's fit"):
        with_head_floors(torch.zeros(1, 4, 8), 1, RouterConfig(head_floors=floors))
