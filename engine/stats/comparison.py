"""Two runs side by side: which units changed, by how much, and how sure one can be of a mean difference.

Runs of the same prompt are paired unit by unit; runs of different prompts are not, and only their means can be
compared. Either way the intervals resample whole layers: they say how the difference varies over this model's heads,
not over prompts, of which there is one on each side. The entropy of a head's choice weighs each domain equally.
"""

from __future__ import annotations

import json
from dataclasses import asdict
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.config import renamed
from routesparse.engine.rows import RunRow
from routesparse.engine.stats.clusters import clustered_interval, difference_interval

UNIT = ["batch_index", "layer", "head", "segment"]
ALIKE = 0.005  # a smaller relative difference of what is read is called none
METRICS = (  # columns of a choice
    "density",
    "gate_statistic",
    "lower_mass",
    "conformal_lower_mass",
    "audited_mass",
    "audited_error",
    "kernel_us",
)
_RUN_FIELDS = (
    "model model_revision tokenizer_hash calibration calibration_mismatch profile gate_threshold "
    "audit_depth device dtype git_commit prompt_name prompt_sha256 domain tokens batch"
)


def pair(baseline: pd.DataFrame, other: pd.DataFrame) -> pd.DataFrame:
    """The units that both sides routed, columns with the suffixes ``_a`` (baseline) and ``_b``.

    ``changed``: read by another family, or by more than ALIKE more or less. A budget's name may differ where nothing
    else does, as between versions, so it is not looked at.
    """
    both = baseline.merge(other, on=UNIT, suffixes=("_a", "_b"))
    before, after = both["density_a"].astype(float), both["density_b"].astype(float)
    amount = (after - before).abs() > ALIKE * np.maximum(before, after)
    return both.assign(changed=(both["pattern_a"] != both["pattern_b"]) | amount)


def differences(baseline: pd.DataFrame, other: pd.DataFrame, paired: bool) -> pd.DataFrame:
    """other - baseline of every metric that both sides have measured somewhere, a row each: ``metric``, the means
    ``baseline`` and ``other`` over units, their ``difference``, its 95 % interval over layers ``low`` and ``high`` (NaN
    of one layer), ``units`` (pairs, or the smaller side where unpaired) and ``paired``."""
    both = pair(baseline, other) if paired else None
    rows = []
    for metric in METRICS:
        if both is None:
            sides = [side[["layer", metric]].astype(float).dropna() for side in (baseline, other)]
            one, two = (side[metric] for side in sides)
            layers = [side["layer"].to_numpy() for side in sides]
        else:
            known = both[["layer", f"{metric}_a", f"{metric}_b"]].astype(float).dropna()
            one, two = known[f"{metric}_a"], known[f"{metric}_b"]
            layers = [known["layer"].to_numpy()]
        if one.empty or two.empty:
            continue
        low = high = np.nan
        if min(len(set(found)) for found in layers) > 1:
            if both is None:
                low, high = difference_interval(one.to_numpy(), layers[0], two.to_numpy(), layers[1])
            else:
                low, high = clustered_interval((two - one).to_numpy(), layers[0])
        means = float(one.mean()), float(two.mean())
        rows.append((metric, *means, means[1] - means[0], low, high, min(len(one), len(two)), paired))
    columns = ["metric", "baseline", "other", "difference", "low", "high", "units", "paired"]
    return pd.DataFrame(rows, columns=columns)


def settings(run: RunRow) -> dict[str, Any]:
    """Everything that was set or found fixed for a run: its configuration, model, device and library versions.

    What the run's policy does not read is None, whatever stands in the record.
    """
    row = asdict(run)
    config = renamed(json.loads(run.config_json), {"gate": "gate_threshold"})
    versions = {f"version of {name}": value for name, value in json.loads(run.versions_json).items()}
    # The run's threshold is lambda as used; the configuration's is what was asked for.
    config["gate_threshold asked for"] = config.pop("gate_threshold", None)
    used: dict[str, Any] = {"price": run.price, "tau_layer": run.tau_layer}
    used["tau_head" if run.tau_layer is None else "tau"] = None
    config.update({name: value for name, value in used.items() if name in config})
    named = {("lambda" if name == "gate_threshold" else name): row[name] for name in _RUN_FIELDS.split()}
    return {**named, "quality target": run.tuned_price, **config, **versions}


def settings_table(sides: dict[str, dict[str, Any]]) -> pd.DataFrame:
    """One row per setting, a column per side, and ``equal``; a setting that a side does not know is None."""
    names = list(dict.fromkeys(name for values in sides.values() for name in values))
    rows = [{"setting": name, **{side: values.get(name) for side, values in sides.items()}} for name in names]
    return pd.DataFrame([{**row, "equal": len({str(row[side]) for side in sides}) == 1} for row in rows])
