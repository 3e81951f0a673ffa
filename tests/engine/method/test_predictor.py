"""The error predictor: monotone, the same numbers as scikit-learn's, and refused when its tables are broken. CPU."""

import dataclasses
import json

import numpy as np
import pytest
import torch

from routesparse.engine.calibrate.predictor_fit import _boost, fit_predictor
from routesparse.engine.calibration.checks import check_trees
from routesparse.engine.method.predictor import FEATURES, SIGNS, ErrorPredictor
from routesparse.engine.schema import FieldError, checked

CPU = torch.device("cpu")


def sample(count=4_000, seed=0):
    """Candidates of 20 prompts whose error falls in g, rises in u and entropy, and is noisy."""
    g = np.random.default_rng(seed)
    features = np.stack([1 - g.beta(1, 8, count), g.gamma(2, 0.02, count), g.normal(3, 1, count).clip(0)], -1)
    error = 1.3 * (1 - features[:, 0]) + 0.8 * features[:, 1] + 0.02 * features[:, 2]
    return features, np.abs(error + g.normal(0, 0.02, count)), g.integers(0, 20, count)


@pytest.fixture(scope="module")
def fitted():
    features, error, prompt = sample()
    return fit_predictor(features, error, prompt, prompt >= 15, seed=0)


def columns(features):
    return [torch.from_numpy(np.ascontiguousarray(features[:, i])) for i in range(len(FEATURES))]


def test_the_exported_trees_predict_what_scikit_learn_predicts(fitted):
    features, error, prompt = sample()
    reference = _boost(features, error, prompt, seed=0)
    fresh = sample(seed=1)[0]
    expected = np.maximum(reference.predict(fresh), 0.0)
    np.testing.assert_allclose(fitted.on(CPU)(*columns(fresh)).numpy(), expected, atol=1e-12)


@pytest.mark.parametrize(("place", "name"), list(enumerate(FEATURES)))
def test_the_prediction_is_monotone_in_every_feature(fitted, place, name):
    base = np.repeat(sample(200, seed=2)[0], 60, axis=0)
    base[:, place] = np.tile(np.linspace(base[:, place].min(), base[:, place].max(), 60), 200)
    steps = np.diff(fitted.on(CPU)(*columns(base)).numpy().reshape(200, 60), axis=1) * SIGNS[place]
    assert steps.min() >= -1e-12
    assert steps.max() > 0


def test_prompts_weigh_the_same_however_many_candidates_they_have():
    """One prompt with 2,000 candidates of error 1 against twenty with 20 each of error 0."""
    features = np.tile([0.9, 0.01, 3.0], (2_400, 1))
    prompt = np.concatenate([np.zeros(2_000), np.repeat(np.arange(1, 21), 20)]).astype(int)
    error = (prompt == 0).astype(float)
    predictor = fit_predictor(features, error, prompt, prompt == 20, seed=0)
    assert predictor.on(CPU)(*columns(features[:1])).item() == pytest.approx(1 / 21, abs=1e-9)


def test_features_broadcast_and_errors_are_never_negative(fitted):
    gate = torch.linspace(0.5, 1.0, 12).view(1, 3, 4)
    out = fitted.on(CPU)(gate, torch.zeros(1, 3, 4), torch.full((1, 3, 1), 2.0))
    assert out.shape == (1, 3, 4) and (out >= 0).all()


def test_a_predictor_survives_json(fitted):
    assert checked(ErrorPredictor, json.loads(json.dumps(dataclasses.asdict(fitted)))) == fitted


@pytest.mark.parametrize(
    "damage",
    [
        lambda v: v.pop("left"),
        lambda v: v["value"].pop(),
        lambda v: v["value"][0].pop(),
        lambda v: v["left"][0].__setitem__(0, 10_000),
        lambda v: v["feature"][0].__setitem__(0, 3),
        lambda v: v.update(baseline="high"),
        lambda v: v.update(threshold=None),
    ],
    ids=["missing", "tree", "node", "left", "feature", "baseline", "none"],
)
def test_broken_tables_are_refused(fitted, damage):
    values = json.loads(json.dumps(dataclasses.asdict(fitted)))
    check_trees(checked(ErrorPredictor, values, "e"), "e")
    damage(values)
    with pytest.raises(FieldError, match=r"^e\."):
        check_trees(checked(ErrorPredictor, values, "e"), "e")


@pytest.mark.parametrize(
    "damage",
    [lambda v: v["left"][0].__setitem__(0, 0), lambda v: v.update(depth=v["depth"] - 1)],
    ids=["circle", "above-the-leaves"],
)
def test_a_depth_that_ends_above_a_leaf_is_refused(fitted, damage):
    """Predicting walks ``depth`` steps: it would stop at a node without a value."""
    values = json.loads(json.dumps(dataclasses.asdict(fitted)))
    damage(values)
    with pytest.raises(FieldError, match=r"^e\.depth is \d+, it must be that of the deepest leaf"):
        check_trees(checked(ErrorPredictor, values, "e"), "e")
