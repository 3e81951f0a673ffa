"""Fit the error predictor e on fold A: histogram gradient boosting with monotone constraints (scikit-learn).

Friedman, 2001; the histogram form after Ke et al., 2017. The trees leave as plain numbers (``method/predictor.py``).
"""

from __future__ import annotations

from typing import Any

import numpy as np

from routesparse.engine.method.predictor import LEAF, SIGNS, ErrorPredictor

TREES = 40
LEAVES = 8
LEARNING_RATE = 0.15
LEAST_ROWS_PER_LEAF = 50


def fit_predictor(
    features: np.ndarray, error: np.ndarray, prompt: np.ndarray, held_out: np.ndarray, seed: int
) -> ErrorPredictor:
    """features float64 [n, 3] as in FEATURES, error = E_rel [n], prompt = its prompt's number [n].

    Every prompt has the same weight. held_out bool [n]: rows that are left out of a first fit which measures the
    quality (r2, mean absolute error; absent where no row is); the predictor that ships is fitted on all rows.
    """
    quality = {
        "candidates": len(error),
        "prompts": len(np.unique(prompt)),
        "held_out_prompts": len(np.unique(prompt[held_out])),
        "mean_error": float(error.mean()),
    }
    if held_out.any():
        tried = _boost(features[~held_out], error[~held_out], prompt[~held_out], seed)
        off = error[held_out] - tried.predict(features[held_out])
        spread = float(((error[held_out] - error[held_out].mean()) ** 2).sum())
        quality["r2"] = 1.0 - float((off**2).sum()) / max(spread, 1e-30)
        quality["mean_absolute_error"] = float(np.abs(off).mean())
    return _export(_boost(features, error, prompt, seed), quality)


def _boost(features: np.ndarray, error: np.ndarray, prompt: np.ndarray, seed: int) -> Any:
    from sklearn.ensemble import HistGradientBoostingRegressor

    _, place, count = np.unique(prompt, return_inverse=True, return_counts=True)
    model = HistGradientBoostingRegressor(
        max_iter=TREES,
        max_leaf_nodes=LEAVES,
        learning_rate=LEARNING_RATE,
        min_samples_leaf=LEAST_ROWS_PER_LEAF,
        monotonic_cst=list(SIGNS),
        early_stopping=False,
        random_state=seed,
    )
    return model.fit(features, error, sample_weight=1.0 / count[place])


def _export(model: Any, quality: dict[str, Any]) -> ErrorPredictor:
    """The fitted trees as padded tables. A node without a split is a leaf that points at itself."""
    trees = [iteration[0].nodes for iteration in model._predictors]
    width = max(len(nodes) for nodes in trees)
    depth = max(int(nodes["depth"].max()) for nodes in trees)

    def padded(name: str, leaf: float, kind: type) -> tuple[tuple[Any, ...], ...]:
        rows = []
        for nodes in trees:
            values = np.where(nodes["is_leaf"] == 1, leaf, nodes[name])
            rows.append(tuple(kind(v) for v in np.pad(values, (0, width - len(nodes)), constant_values=leaf)))
        return tuple(rows)

    return ErrorPredictor(
        baseline=float(np.ravel(model._baseline_prediction)[0]),
        feature=padded("feature_idx", LEAF, int),
        threshold=padded("num_threshold", 0.0, float),
        left=padded("left", 0, int),
        right=padded("right", 0, int),
        value=tuple(
            tuple(float(v) for v in np.pad(nodes["value"] * nodes["is_leaf"], (0, width - len(nodes))))
            for nodes in trees
        ),
        depth=depth,
        fit=quality,
    )
