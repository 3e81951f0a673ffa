"""One row per test window: the CSV file that every rate of the result file can be computed from again."""

from __future__ import annotations

import numpy as np
import pandas as pd

from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.lab.studies.coverage.certificates import delta_of, layer_rows
from routesparse.engine.lab.studies.coverage.data import descriptors


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
