"""Can the certificates be trusted? Coverage, fallback, bounds and drift on test documents.

    python -m routesparse.engine.lab.studies.coverage.analyse \
        --units units --profile PROFILE.json --out data/results/coverage.json

Reads what ``measure.py`` wrote and the bundled calibrations; nothing here was fitted on a test window. Beside the
result file, ``<name>_windows.csv`` holds one row per test window, which every rate here can be computed from again.
Intervals resample clusters (``plan.py``); fewer than ``stats.coverage.FEWEST_CLUSTERS`` give none.

- layer: share with the mean mass of the layer's heads >= its certificate.
- conformal: share of selected sparse units with g* >= g - delta, per prompt; and the body mean mass against it.
- in-prompt: share with body mean mass >= its certificate; how far betting and empirical Bernstein lie below the mass.
- row: share of body rows above the k-th smallest certificate row, at q and at the recorded union-bound level.
- judged in ``certificates.py`` (the first three).

data/results/TRUST.md was written at commit b6dfeee2, where this file also had controls (what must lose coverage: delta
from other candidates, rows at the end of query blocks, another domain's delta) and said where the attention work comes
from.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.calibration.artifact import STAMPED, Calibration, load_calibration, unread_by
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, ProfileError
from routesparse.engine.export.csv_text import as_csv
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage.certificates import (
    CONFIDENCE,
    conformal,
    cover,
    in_prompt,
    in_prompt_layers,
    per_window,
)
from routesparse.engine.lab.studies.coverage.data import Measured, descriptors, flattened, load
from routesparse.engine.lab.studies.coverage.plan import DOMAINS
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import load_model
from routesparse.engine.stats.coverage import FEWEST_CLUSTERS, trusted_interval

LENGTHS = {"4096": (0, 4_096), "8192": (4_097, 8_192), "16384": (8_193, 16_384)}


def main(argv: list[str] | None = None) -> None:
    """Write the result file."""
    parser = study.parser(__doc__)
    parser.add_argument("--units", type=Path, nargs="+", required=True)
    parser.add_argument("--profile", type=Path, required=True, help="the latency profile of the measuring")
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model, device="cpu")
    measured = load(arguments.units)
    units, windows = measured.part("test")
    calibrations = {name: load_calibration(name) for name in (*DOMAINS, "mixed", "robust")}
    profile, config = LatencyProfile.load(arguments.profile), measured.config
    check(measured, calibrations, profile)
    result: dict[str, Any] = {
        **study.header(loaded, arguments),
        "measured": measured.provenance,
        "profile": str(windows["profile"].iloc[0]),
        "policy": config.policy,
        "price": config.price,
        "tau_layer": config.tau_layer,
        "tau_head": config.tau_head,
        "confidence": CONFIDENCE,
        "bound_error": 1.0 - config.confidence,
        "fewest_clusters": FEWEST_CLUSTERS,
        "calibrations": {name: _calibration(c) for name, c in calibrations.items()},
        "domains": {},
        "mixed": {},
    }
    for length, (low, high) in LENGTHS.items():
        inside = (units["tokens"] >= low) & (units["tokens"] <= high)
        for domain in windows["domain"].unique():
            mine = units[inside & (units["domain"] == domain)]
            if len(mine):
                found = _domain(mine, windows, calibrations, domain, config)
                result["domains"].setdefault(domain, {})[length] = found
        calibrated = units[inside & units["domain"].isin(DOMAINS)]
        if len(calibrated):
            result["mixed"][length] = _mixed(calibrated, windows)
    result["drift"] = _drift(units, calibrations)
    result["family"] = _grouped(units, "pattern", config)
    result["layer"] = _grouped(units, "layer", config)
    kept = arguments.out.with_name(f"{arguments.out.stem}_windows.csv")
    kept.parent.mkdir(parents=True, exist_ok=True)
    rows = per_window(units, windows, calibrations, config)
    kept.write_text(as_csv(rows, float_format="%.6g", lineterminator="\n"), "utf-8")
    study.save(arguments.out, result)


def check(measured: Measured, calibrations: dict[str, Calibration], profile: LatencyProfile) -> None:
    """Errors: ProfileError for another profile than the measuring's; CalibrationError where a calibration was made for
    another policy or model than was measured, or has a document in both folds or among the test documents.
    """
    window, config = measured.part("test")[1].iloc[0], measured.config
    values = config.to_dict()
    read = {name: values[name] for name in STAMPED if name not in unread_by(config)}
    if profile.name != window["profile"]:
        raise ProfileError(f"the windows were measured with profile {window['profile']}, not {profile.name}")
    for name, c in calibrations.items():
        costs = None if c.cost_model is None else c.cost_model.profile
        here = (costs, c.model_revision, c.dtype)
        there = tuple(window[["profile", "revision", "dtype"]])
        if here != there:
            raise CalibrationError(
                f"calibration {name!r} has (profile, revision, dtype) {here}, the windows {there}; "
                "ship calibrations from these windows first"
            )
        for field, value in read.items():
            if c.stamp.get(field, value) != value:
                raise CalibrationError(
                    f"calibration {name!r} was made with {field} {c.stamp[field]!r}, the windows were measured "
                    f"with {value!r}; ship calibrations from these windows first"
                )
        if c.overlap() or c.overlap_with(measured.part("test")[1]["document_sha256"]):
            raise CalibrationError(
                f"calibration {name!r} shares a document between folds or with the test set"
            )


def _calibration(c: Calibration) -> dict[str, Any]:
    return {
        "alpha": c.alpha,
        "predictor": None
        if c.predictor is None
        else {k: v for k, v in c.predictor.fit.items() if k != "curves"},
        "buckets": [{k: v for k, v in vars(b).items() if k != "histogram"} for b in c.buckets],
        "documents": {fold: len(part["documents"]) for fold, part in c.folds.items()},
    }


def _domain(
    units: pd.DataFrame,
    windows: pd.DataFrame,
    calibrations: dict[str, Calibration],
    domain: str,
    config: RouterConfig,
) -> dict[str, Any]:
    """Everything about one domain's test windows of one length."""
    mine = windows.loc[units["number"].unique()]
    sparse = units[units["is_sparse"]]
    work = mine["density"].to_numpy(dtype=np.float64)
    fallback = units.assign(to_dense=units["fallback"] == 2).groupby("number")["to_dense"].mean()
    found = {
        **_evidence(mine),
        "units": len(units),
        "sparse_units": len(sparse),
        "in_prompt": in_prompt(units, config),
        "layer": in_prompt_layers(units, config),
        "row": {
            "kept_at_q": cover(sparse, sparse["row_q_covered"]),
            "kept_as_recorded": cover(sparse, sparse["row_s_covered"]),
            "first_choice_at_q": cover(
                units[units["first_row_covered"].notna()], units["first_row_covered"].dropna()
            ),
        },
        "conformal": {
            name: conformal(sparse, c)
            for name, c in calibrations.items()
            if name in (domain, "mixed", "robust")
        },
        "fallback": {
            "expanded": float((units["fallback"] == 1).mean()),
            "dense_by_fallback": float((units["fallback"] == 2).mean()),
            "dense_by_fallback_interval": trusted_interval(
                fallback.to_numpy(), mine.loc[fallback.index, "cluster"].to_numpy()
            ),
            "dense_by_router": float(((units["fallback"] == 0) & ~units["is_sparse"]).mean()),
            "attention_work": float(work.mean()),
            "attention_work_interval": trusted_interval(work, mine["cluster"].to_numpy()),
        },
        "bounds": _bounds(sparse),
    }
    return found


def _evidence(windows: pd.DataFrame) -> dict[str, int]:
    """How many windows, documents and clusters stand behind a figure."""
    return {
        "windows": len(windows),
        "documents": int(windows["document"].nunique()),
        "clusters": int(windows["cluster"].nunique()),
    }


def _bounds(sparse: pd.DataFrame) -> dict[str, Any]:
    """Violations over the audited rows; looseness (bound over error) over a sample of them, exact error beside it."""
    error = flattened(sparse, "row_error")
    found: dict[str, Any] = {
        "violations": int(sparse["violations"].sum()),
        "audited_rows": int(sparse["rows"].sum()),
        "sampled_rows": len(error),
        "executed_error": float(sparse["executed_error"].max()),
        "row_error": {"median": float(np.median(error)), "p95": float(np.quantile(error, 0.95))},
        "mean_relative_error": float(sparse["mean_error"].mean()),
    }
    some = error > 1e-6
    for name in ("paper", "tight"):
        ratio = flattened(sparse, f"row_{name}")[some] / error[some]
        found[f"looseness_{name}"] = {
            "median": float(np.median(ratio)),
            "p95": float(np.quantile(ratio, 0.95)),
        }
    return found


def _mixed(units: pd.DataFrame, windows: pd.DataFrame) -> dict[str, Any]:
    """The calibration domains with equal weights: fallback rate and attention work."""
    per = (
        units.assign(dense=units["fallback"] == 2).groupby(["domain", "number"])["dense"].mean().reset_index()
    )
    rate = float(per.groupby("domain")["dense"].mean().mean())
    mine = windows.loc[units["number"].unique()]
    work = float(mine.groupby("domain")["density"].mean().mean())
    return {
        **_evidence(mine),
        "dense_by_fallback": rate,
        "dense_by_fallback_interval": trusted_interval(
            per["dense"].to_numpy(), mine.loc[per["number"], "cluster"].to_numpy()
        ),
        "attention_work": work,
    }


def _drift(units: pd.DataFrame, calibrations: dict[str, Calibration]) -> dict[str, Any]:
    """Share of test windows on which each calibration's alarm goes off, by domain, with an interval over clusters."""
    of = ["domain", "document", "cluster", "tokens"]
    prompts = [(*rows[of].iloc[0].tolist(), descriptors(rows)[1]) for _, rows in units.groupby("number")]
    found: dict[str, Any] = {}
    own = []
    for name, calibration in calibrations.items():
        if calibration.drift is None or name == "robust":
            continue
        rows = []
        for *what, tokens, values in prompts:
            assessed = calibration.drift.assess(values, tokens)
            if assessed is not None:
                rows.append((*what, tokens, assessed.alarm, assessed.distance))
        frame = pd.DataFrame(rows, columns=[*of, "alarm", "distance"])
        found[name] = {domain: _alarms(part) for domain, part in frame.groupby("domain")}
        own.append(frame[frame["domain"] == name])
    inside = pd.concat(own)
    by_length = inside.groupby(
        pd.cut(inside["tokens"], [0, 4_096, 8_192, 16_384]).map(lambda x: str(x.right))
    )
    found["in_domain"] = {
        **_alarms(inside),
        "by_length": {k: _alarms(part) for k, part in by_length if len(part)},
    }
    found["level"] = next(c.drift.level for c in calibrations.values() if c.drift is not None)
    return found


def _alarms(windows: pd.DataFrame) -> dict[str, Any]:
    return {
        **_evidence(windows),
        "alarms": int(windows["alarm"].sum()),
        "rate": float(windows["alarm"].mean()),
        "interval": trusted_interval(windows["alarm"].astype(float), windows["cluster"].to_numpy()),
        "median_distance": float(windows["distance"].median()),
    }


def _grouped(units: pd.DataFrame, column: str, config: RouterConfig) -> dict[str, Any]:
    """In-prompt coverage and the audited mass by family or layer, over all test domains."""
    sparse = units[units["is_sparse"]]
    return {
        str(name): {**in_prompt(part, config), "mean_mass": float(part["true_mass"].mean())}
        for name, part in sparse.groupby(column)
    }


if __name__ == "__main__":
    study.run(main)
