"""The gate statistic and eq. 4's risk on numbers that can be checked in the head. No GPU."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.router import Scores, cheapest_admissible, choose


def scores(**extra):
    one = np.array([[0.9, 0.95, 1.0]])
    values = {
        "mass": one,
        "recent_mass": np.array([[0.95, 0.8, 1.0]]),
        "disagreement": np.array([[0.1, 0.0, 0.0]]),
        "density": np.array([[0.1, 0.2, 1.0]]),
        "kernel_us": np.array([[1.0, 2.0, 9.0]]),
    }
    return Scores(**{**values, **extra})


def test_the_gate_is_the_smaller_of_routing_and_recent_mass():
    np.testing.assert_allclose(scores().gate_statistic, [[0.9, 0.8, 1.0]])


def test_risk_is_the_omitted_gate_mass_plus_weighted_disagreement_and_error():
    with_error = scores(predicted_error=np.array([[0.2, 0.3, 0.0]]))
    np.testing.assert_allclose(with_error.risk(0.5, 2.0), [[0.1 + 0.05 + 0.4, 0.2 + 0.6, 0.0]])


def test_beta_without_a_predictor_is_refused():
    with pytest.raises(ValueError, match="beta > 0 needs an error predictor"):
        scores().risk(0.5, 1.0)


def test_tensors_give_the_arrays_numbers_to_the_last_bit(oracle):
    base = replace(oracle.random_scores(0), predicted_error=oracle.random_scores(1).disagreement)
    there = Scores(**{name: torch.from_numpy(value) for name, value in vars(base).items()})
    assert (there.gate_statistic.numpy() == base.gate_statistic).all()
    assert (there.risk(0.5, 2.0).numpy() == base.risk(0.5, 2.0)).all()
    gated = cheapest_admissible(there.gate_statistic, there.kernel_us, 0.8)
    assert (gated.numpy() == cheapest_admissible(base.gate_statistic, base.kernel_us, 0.8)).all()
    arrays, tensors = (
        choose(s.gate_statistic, s.risk(0.5, 0.0), s.kernel_us, RouterConfig(), 0.8, 1e3)
        for s in (base, there)
    )
    assert (arrays.choice == tensors.choice.numpy()).all()
    assert bool(arrays.limited) == bool(tensors.limited)
