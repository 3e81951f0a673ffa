"""Can the certificates be trusted? Coverage, fallback, bounds and drift on test documents.

    python -m routesparse.engine.lab.studies.coverage.analyse \
        --units units.jsonl --profile PROFILE.json --out data/results/coverage.json

Reads what ``measure.py`` wrote and the bundled calibrations; nothing here was fitted on a test window. The result file
has four tables, each a list of rows with the number of windows and clusters behind it: ``claims`` (what was promised,
beside what came true, by domain and length, and over all domains by family and by layer), ``rates`` (fallback,
attention work and drift alarms), ``bounds`` (of output errors), and where they come from. Beside it,
``<name>_windows.csv`` holds one row per test window, which every rate can be computed from again. Intervals resample
clusters (``plan.py``); fewer than ``stats.coverage.FEWEST_CLUSTERS`` give none.

    head        each selected sparse unit's certificate, against its body mean mass; Bernstein's bound beside it
    layer       the layer's certificate, against the mean mass of its heads
    every rung  each bound that was tested, kept or not: which rungs are climbed depends on their bounds
    floor       how often what was kept lies below the policy's own floor
    jointly     every head of a window at once, each at its own level, and at the level that holds for all (Bonferroni)
    sabotaged   a head's bound of error 0.2, and one of the rows that chose its plan: controls that must fall short
    conformal   g - delta of each calibration, another domain's too (a control), against g*, and against the mass
    row         share of body rows above the k-th smallest certificate row, at q and at the recorded level

data/results/TRUST.md was written at commit b6dfeee2, whose result file had another shape and more controls.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine import paths
from routesparse.engine.calibrate.origin import origin
from routesparse.engine.calibration.artifact import STAMPED, Calibration, load_calibration, unread_by
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, ProfileError
from routesparse.engine.export.csv_text import as_csv
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.coverage.data import Measured, descriptors, flattened, load
from routesparse.engine.lab.studies.coverage.plan import DOMAINS
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import load_model
from routesparse.engine.stats.coverage import FEWEST_CLUSTERS, summarise, trusted_interval

CONFIDENCE = 0.95
WHOLE = 1e-6  # a mean mass this close to 1 is the whole
LENGTHS = [0, 4_096, 8_192, 16_384]
CELL = ["domain", "length"]
JOINTLY = ["head", "head, Bonferroni", "layer"]  # claims of which a window's are also taken together
RATES = ["expanded", "dense_by_fallback", "dense_by_router"]


def main(argv: list[str] | None = None) -> None:
    """Write the result file."""
    parser = study.parser(__doc__)
    parser.add_argument("--units", type=Path, nargs="+", required=True)
    parser.add_argument("--profile", type=Path, required=True, help="the latency profile of the measuring")
    parser.add_argument(
        "--no-calibrations", action="store_true", help="for a model that the bundled ones are not of"
    )
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model, device="cpu")
    measured = load(arguments.units)
    units, windows = map(_with_length, measured.part("test"))
    named = () if arguments.no_calibrations else (*DOMAINS, "mixed", "robust")
    calibrations = {name: load_calibration(name) for name in named}
    config = measured.config
    check(measured, calibrations, LatencyProfile.load(arguments.profile))
    found = claims(units, calibrations, config)
    rows = per_window(units, windows, found, calibrations)
    kept = arguments.out.with_name(f"{arguments.out.stem}_windows.csv")
    kept.parent.mkdir(parents=True, exist_ok=True)
    kept.write_text(as_csv(rows, float_format="%.6g", lineterminator="\n"), "utf-8")
    result = {
        **origin(loaded, study.command(), arguments.seed),
        "measured": measured.provenance,
        "profile": str(windows["profile"].iloc[0]),
        "config": config.to_dict(),
        "confidence": CONFIDENCE,
        "fewest_clusters": FEWEST_CLUSTERS,
        "calibrations": {name: _calibration(c) for name, c in calibrations.items()},
        "claims": [row for by in (CELL, ["pattern"], ["layer"]) for row in summaries(found, by)],
        "rates": rates(rows),
        "bounds": [
            dict(zip(CELL, map(str, cell), strict=True)) | _bounds(part)
            for cell, part in units[units["is_sparse"]].groupby(CELL)
        ],
    }
    paths.write_json(arguments.out, result)


def _with_length(frame: pd.DataFrame) -> pd.DataFrame:
    return frame.assign(length=pd.cut(frame["tokens"], LENGTHS, labels=LENGTHS[1:]).astype(int))


def check(measured: Measured, calibrations: Mapping[str, Calibration], profile: LatencyProfile) -> None:
    """Errors: ProfileError for another profile than the measuring's; CalibrationError where a calibration was made for
    another policy or model than was measured, or has a document in both folds or among the test documents.
    """
    tests, config = measured.part("test")[1], measured.config
    window, values = tests.iloc[0], config.to_dict()
    read = {name: values[name] for name in STAMPED if name not in unread_by(config)}
    if profile.name != window["profile"]:
        raise ProfileError(f"the windows were measured with profile {window['profile']}, not {profile.name}")
    for name, c in calibrations.items():
        costs = None if c.cost_model is None else c.cost_model.profile
        made = {"profile": costs, "revision": c.model_revision, "dtype": c.dtype} | c.stamp
        for field, value in (dict(window[["profile", "revision", "dtype"]]) | read).items():
            if made.get(field, value) != value:
                raise CalibrationError(
                    f"calibration {name!r} was made with {field} {made[field]!r}, the windows were measured "
                    f"with {value!r}; ship calibrations from these windows first"
                )
        if c.overlap() or c.overlap_with(tests["document_sha256"]):
            raise CalibrationError(
                f"calibration {name!r} shares a document between folds or with the test set"
            )


def claims(
    units: pd.DataFrame, calibrations: Mapping[str, Calibration], config: RouterConfig
) -> pd.DataFrame:
    """A row for each promise: ``claim``, whose it is, ``promised``, ``true`` and ``covered``, the share that held."""
    sparse = units[units["is_sparse"]]
    layers = units.drop_duplicates(["number", "layer", "segment"]).assign(pattern=None)
    kept, mass = layers.dropna(subset=["layer_lower"]), sparse["true_mass"]
    made: dict[str, tuple[pd.DataFrame, Any, Any]] = {
        "head": (sparse, sparse["lower"], mass),
        "head, Bernstein": (sparse, sparse["bernstein"], mass),
        "head, floor": (sparse, config.least_head_mass, mass),
        "layer": (kept, kept["layer_lower"], kept["layer_true"]),
        "layer, floor": (kept, config.tau_layer, kept["layer_true"]),
    }
    for name, of, lower, true in (
        ("head, every rung", units, "rung_lower", "rung_true"),
        ("layer, every rung", layers, "layer_bounds", "layer_rung_true"),
    ):
        rungs = of.explode([lower, true]).dropna(subset=[lower, true])
        rungs = rungs[rungs[true] < 1.0 - WHOLE]  # where every head is dense nothing can go wrong
        made[name] = (rungs, rungs[lower].astype(float), rungs[true].astype(float))
    for name, column in (
        ("head, Bonferroni", "lower_joint"),
        ("head, sabotaged: error 0.2", "lower_sabotaged"),
        ("head, sabotaged: rows that chose", "lower_reused"),
    ):
        if column in sparse:
            made[name] = (sparse, sparse[column], mass)
    for name, calibration in calibrations.items():
        lengths = {n: calibration.delta(int(n), CONFIDENCE) for n in units["tokens"].unique()}
        delta = sparse["tokens"].map(lengths).astype(float)
        promising = sparse[np.isfinite(delta)]
        low = (promising["gate_statistic"] - delta).dropna().clip(0, 1)
        made[f"conformal {name}"] = (promising, low, promising["target"])
        made[f"conformal {name}, mass"] = (promising, low, promising["true_mass"])
    whose = ["number", "cluster", *CELL, "pattern", "layer"]
    found = [of[whose].assign(claim=name, promised=low, true=true) for name, (of, low, true) in made.items()]
    found = [one.assign(covered=(one["true"] >= one["promised"]).astype(float)) for one in found]
    for name, column in (
        ("row, at q", "row_q_covered"),
        ("row, as recorded", "row_s_covered"),
        ("row, first choice", "first_row_covered"),
    ):
        known = units.dropna(subset=[column])
        found.append(known[whose].assign(claim=name, covered=known[column].astype(float)))
    for one in [part for part in found if part["claim"].iloc[:1].isin(JOINTLY).any()]:
        windows = one.groupby(["number", "cluster", *CELL], observed=True, as_index=False)["covered"].min()
        found.append(
            windows.assign(claim=f"all of a window jointly: {one['claim'].iloc[0]}", pattern=None, layer=None)
        )
    return pd.concat([one for one in found if len(one)], ignore_index=True)


def summaries(found: pd.DataFrame, by: list[str]) -> list[dict[str, Any]]:
    """Each claim's coverage by such columns, with how far the promises lie below what came true."""
    rows = []
    for (claim, *of), part in found.groupby(["claim", *by]):
        covered, true, promised = part["covered"], part["true"], part["promised"]
        told: dict[str, float] = {"broken": int((covered < 1).sum())}
        if promised.notna().any():
            told |= {
                "median_gap": float((true - promised).median()),
                "median_promised": float(promised.median()),
                "least_promised": float(promised.min()),
                "least_true": float(true.min()),
                "zero_promises": int((promised == 0).sum()),
            }
        summary = summarise(covered.to_numpy(), part["number"].to_numpy(), part["cluster"].to_numpy())
        named = dict(zip(by, (str(one) for one in of), strict=True))
        rows.append({"claim": claim, **named, **vars(summary), **told})
    return rows


def per_window(
    units: pd.DataFrame,
    windows: pd.DataFrame,
    found: pd.DataFrame,
    calibrations: Mapping[str, Calibration],
) -> pd.DataFrame:
    """One row per window: what it is, its rates of units, and the share of its promises of each claim that held.

    alarm_<calibration>: 1 where its drift alarm goes off. NaN: no such promise, or no alarm for this length.
    """
    kinds = units.assign(
        expanded=units["fallback"] == 1,
        dense_by_fallback=units["fallback"] == 2,
        dense_by_router=(units["fallback"] == 0) & ~units["is_sparse"],
    )
    by = kinds.groupby("number")
    facts = ["window", "document", "cluster", *CELL, "tokens", "device", "density"]
    frame = windows[facts].join(by[RATES].mean()).assign(units=by.size(), sparse_units=by["is_sparse"].sum())
    frame = frame.join(found.pivot_table("covered", "number", "claim"))
    values = {number: descriptors(rows)[1] for number, rows in by}
    for name, calibration in calibrations.items():
        if calibration.drift is not None:
            told = {n: calibration.drift.assess(v, int(frame["tokens"][n])) for n, v in values.items()}
            alarms = {n: float(one.alarm) for n, one in told.items() if one is not None}
            frame[f"alarm_{name}"] = pd.Series(alarms, dtype=float)
    return frame.sort_values("window")


def rates(rows: pd.DataFrame) -> list[dict[str, Any]]:
    """Means over the windows of a domain and length, with intervals over clusters: RATES, density, and alarms."""
    names = [*RATES, "density", *(name for name in rows.columns if name.startswith("alarm_"))]
    told = []
    for cell, part in rows.groupby(CELL):
        for name in names:
            known = part.dropna(subset=[name])
            if len(known):
                values = known[name].to_numpy(dtype=float)
                told.append(
                    {
                        **dict(zip(CELL, map(str, cell), strict=True)),
                        "rate": name,
                        "windows": len(known),
                        "documents": int(known["document"].nunique()),
                        "clusters": int(known["cluster"].nunique()),
                        "mean": float(values.mean()),
                        "interval": trusted_interval(values, known["cluster"].to_numpy()),
                    }
                )
    return told


def _calibration(c: Calibration) -> dict[str, Any]:
    return {
        "alpha": c.alpha,
        "predictor": None
        if c.predictor is None
        else {k: v for k, v in c.predictor.fit.items() if k != "curves"},
        "buckets": [{k: v for k, v in vars(b).items() if k != "histogram"} for b in c.buckets],
        "documents": {fold: len(part["documents"]) for fold, part in c.folds.items()},
    }


def _bounds(sparse: pd.DataFrame) -> dict[str, Any]:
    """Violations over the audited rows; looseness (bound over error) over a sample of them, exact error beside it."""
    error = flattened(sparse, "row_error")
    some = error > 1e-6
    of = {"row_error": error}
    of |= {
        f"looseness_{name}": flattened(sparse, f"row_{name}")[some] / error[some]
        for name in ("paper", "tight")
    }
    return {
        "violations": int(sparse["violations"].sum()),
        "audited_rows": int(sparse["rows"].sum()),
        "sampled_rows": len(error),
        "executed_error": float(sparse["executed_error"].max()),
        "mean_relative_error": float(sparse["mean_error"].mean()),
        **{
            name: {"median": float(np.median(values)), "p95": float(np.quantile(values, 0.95))}
            for name, values in of.items()
            if len(values)
        },
    }


if __name__ == "__main__":
    study.run(main)
