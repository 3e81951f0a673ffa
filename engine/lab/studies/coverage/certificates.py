"""What each certificate promised for test units, beside what came true: heads, layers, and calibrated deltas.

Each takes units as ``data.py`` loads them, a row per window, layer, segment and head.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.lab.studies.coverage.data import descriptors, flattened
from routesparse.engine.stats.coverage import summarise

CONFIDENCE = 0.95
WHOLE = 1e-6  # a mean mass this close to 1 is the whole


def cover(units: pd.DataFrame, covered: pd.Series | np.ndarray) -> dict[str, Any]:
    """``stats.coverage.summarise`` by window and cluster (``plan.cluster``)."""
    if not len(units):
        return {}
    return vars(
        summarise(np.asarray(covered, dtype=float), units["number"].to_numpy(), units["cluster"].to_numpy())
    )


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


def per_window(
    units: pd.DataFrame, windows: pd.DataFrame, calibrations: dict[str, Calibration], config: RouterConfig
) -> pd.DataFrame:
    """One row per window: what it is, its counts of units, and the share of its sparse units that each claim covers.

    Also its layers: how many were certified, the least certified, and the share covered.
    alarm_<calibration>: 1 where its drift alarm goes off. NaN: no sparse unit, or no delta or no alarm for this length.
    """
    sparse = units[units["is_sparse"]]
    claims = {
        "in_prompt": sparse["true_mass"] >= sparse["lower"],
        "row_at_q": sparse["row_q_covered"],
        "row_as_recorded": sparse["row_s_covered"],
    }
    for name, calibration in calibrations.items():
        delta = delta_of(sparse, calibration)
        held = (sparse["target"] >= (sparse["gate_statistic"] - delta).clip(0, 1)).astype(float)
        claims[f"conformal_{name}"] = held.where(np.isfinite(delta))
    by = units.groupby("number")
    frame = windows[["window", "domain", "document", "cluster", "tokens", "device", "density"]].copy()
    frame["units"] = by.size()
    frame["sparse_units"] = by["is_sparse"].sum()
    frame["expanded_units"] = by["fallback"].agg(lambda kinds: (kinds == 1).sum())
    frame["dense_fallback_units"] = by["fallback"].agg(lambda kinds: (kinds == 2).sum())
    below = sparse["true_mass"] < config.least_head_mass
    frame["below_tau_units"] = below.groupby(sparse["number"]).sum()
    certified = layer_rows(units).dropna(subset=["layer_lower"])
    held = (certified["layer_true"] >= certified["layer_lower"]).astype(float)
    frame["certified_layers"] = certified.groupby("number").size()
    frame["least_layer_lower"] = certified.groupby("number")["layer_lower"].min()
    frame["in_prompt_layers"] = held.groupby(certified["number"]).mean()
    for name, covered in claims.items():
        frame[name] = covered.astype(float).groupby(sparse["number"]).mean()
    values = {number: descriptors(rows)[1] for number, rows in by}
    for name, calibration in calibrations.items():
        if calibration.drift is not None:
            assessed = {n: calibration.drift.assess(v, int(frame["tokens"][n])) for n, v in values.items()}
            frame[f"alarm_{name}"] = pd.Series(
                {n: None if a is None else float(a.alarm) for n, a in assessed.items()}, dtype=float
            )
    return frame.sort_values("window")
