"""What each certificate promised for test units, beside what came true: heads, layers, and calibrated deltas.

Each takes units as ``data.py`` loads them, a row per window, layer, segment and head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.lab.studies.coverage.controls import CONFIDENCE, cover
from routesparse.engine.lab.studies.coverage.data import flattened

WHOLE = 1e-6  # a mean mass this close to 1 is the whole


def in_prompt(units: pd.DataFrame, config: RouterConfig) -> dict[str, Any]:
    """Each head's certificate. Every rung's bound is a test, whether the unit kept it or not: which rungs a unit climbs
    depends on their bounds.
    """
    sparse = units[units["is_sparse"]]
    tests = pd.DataFrame({"lower": flattened(units, "rung_lower"), "true": flattened(units, "rung_true")})
    return {
        **cover(sparse, sparse["true_mass"] >= sparse["lower"]),
        "median_gap": float((sparse["true_mass"] - sparse["lower"]).median()),
        "median_gap_bernstein": float((sparse["true_mass"] - sparse["bernstein"]).median()),
        "false_passes": int((sparse["true_mass"] < config.least_head_mass).sum()),
        "median_certified": float(sparse["lower"].median()),
        "least_certified": float(sparse["lower"].min()),
        "least_mass": float(sparse["true_mass"].min()),
        "tests": len(tests),
        "tests_above_the_truth": int((tests["lower"] > tests["true"]).sum()),
    }


def layer_rows(units: pd.DataFrame) -> pd.DataFrame:
    """One row per window, layer and segment."""
    return units.drop_duplicates(["number", "layer", "segment"])


def in_prompt_layers(units: pd.DataFrame, config: RouterConfig) -> dict[str, Any]:
    """The layers' certificate. A rung at which every head is dense is no test: nothing can go wrong there."""
    layers = layer_rows(units)
    kept = layers.dropna(subset=["layer_lower"])
    lower, true = (flattened(layers, name) for name in ("layer_bounds", "layer_rung_true"))
    tested = true < 1.0 - WHOLE
    return {
        **cover(kept, kept["layer_true"] >= kept["layer_lower"]),
        "layers": len(layers),
        "raised": float((layers["layer_rung"] > 0).mean()),
        "dense": float(layers["layer_lower"].isna().mean()),
        "median_gap": float((kept["layer_true"] - kept["layer_lower"]).median()),
        "false_passes": int((kept["layer_true"] < config.tau_layer).sum()),
        "median_certified": float(kept["layer_lower"].median()),
        "least_certified": float(kept["layer_lower"].min()),
        "median_mass": float(kept["layer_true"].median()),
        "least_mass": float(kept["layer_true"].min()),
        "tests": int(tested.sum()),
        "tests_above_the_truth": int((lower[tested] > true[tested]).sum()),
    }


def delta_of(units: pd.DataFrame, calibration: Calibration) -> np.ndarray:
    """Each unit's conformal delta, float64 [units]: that of its prompt's length, infinite where there is none."""
    lengths = {n: calibration.delta(int(n), CONFIDENCE) for n in units["tokens"].unique()}
    return units["tokens"].map(lengths).to_numpy(dtype=np.float64)


def conformal(sparse: pd.DataFrame, calibration: Calibration) -> dict[str, Any]:
    """How often the calibrated bound g - delta held for the selected units, and the body's mass against it."""
    delta = delta_of(sparse, calibration)
    if not np.isfinite(delta).all():
        return {"delta": None}
    low = (sparse["gate_statistic"] - delta).clip(0, 1)
    return {
        "delta": float(delta.max()),
        **cover(sparse, sparse["target"] >= low),
        "body_mass_coverage": float((sparse["true_mass"] >= low).mean()),
        "median_target_gap": float((sparse["target"] - low).median()),
        "median_mass_gap": float((sparse["true_mass"] - low).median()),
        "zero_bounds": int((low == 0).sum()),
    }
