"""Can the certificates be trusted? Coverage, controls, fallback, bounds and drift on test documents.

    python -m routesparse.engine.evaluation.trust --units units --out data/results/coverage.json

Reads what ``trust_measures`` wrote and the bundled calibrations; nothing here was fitted on a test window.

- conformal: share of selected sparse units with g* >= g - delta, per prompt; and the body mean mass against it.
- in-prompt: share with body mean mass >= its certificate; how far betting and empirical Bernstein lie below the mass.
- row: share of body rows above the k-th smallest certificate row, at q and at the recorded union-bound level.
- controls that must fail: delta from all admissible candidates, rows at the end of query blocks, another domain's.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.calibration import Calibration, conformal_delta, load_calibration
from routesparse.engine.coverage_stats import clustered_interval, summarise
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.trust_data import descriptors, read
from routesparse.engine.evaluation.trust_plan import BUCKETS, DOMAINS
from routesparse.engine.models import load_model

CONFIDENCE = 0.95
FALLBACK_TARGET = 0.068
WORK_TARGET = 0.35
LENGTHS = {"4096": (0, 4_096), "8192": (4_097, 8_192), "16384": (8_193, 16_384)}


def main(argv: list[str] | None = None) -> None:
    """Write the result file."""
    parser = study.parser(__doc__)
    parser.add_argument("--units", type=Path, nargs="+", required=True)
    arguments = parser.parse_args(argv)
    loaded = load_model(arguments.model, device="cpu")
    units, windows = read(arguments.units, "test")
    calibrations = {name: load_calibration(name) for name in (*DOMAINS, "mixed", "robust")}
    overlap = calibrations["mixed"].overlap_with(windows["document_sha256"])
    if overlap or any(c.overlap() for c in calibrations.values()):
        raise SystemExit("a calibration document is in the test set, or in both folds")
    result: dict[str, Any] = {
        **study.header(loaded, arguments),
        "device": "NVIDIA H200 (windows above 8,192 tokens and some others) and CPU, float32 throughout",
        "profile": str(windows["profile"].iloc[0]),
        "confidence": CONFIDENCE,
        "calibrations": {name: _calibration(c) for name, c in calibrations.items()},
        "domains": {},
        "mixed": {},
    }
    for length, (low, high) in LENGTHS.items():
        inside = (units["tokens"] >= low) & (units["tokens"] <= high)
        for domain in windows["domain"].unique():
            mine = units[inside & (units["domain"] == domain)]
            if len(mine):
                result["domains"].setdefault(domain, {})[length] = _domain(
                    mine, windows, calibrations, domain
                )
        calibrated = units[inside & units["domain"].isin(DOMAINS)]
        if len(calibrated):
            result["mixed"][length] = _mixed(calibrated, windows)
    result["controls"] = _controls(units, read(arguments.units, "B")[0], calibrations)
    result["drift"] = _drift(units, calibrations)
    result["family"] = _grouped(units, "pattern")
    result["layer"] = _grouped(units, "layer")
    study.save(arguments.out, result)


def _calibration(c: Calibration) -> dict[str, Any]:
    return {
        "gate": c.gate,
        "alpha": c.alpha,
        "predictor": None
        if c.predictor is None
        else {k: v for k, v in c.predictor.fit.items() if k != "curves"},
        "buckets": [{k: v for k, v in vars(b).items() if k != "histogram"} for b in c.buckets],
        "documents": {fold: len(part["documents"]) for fold, part in c.folds.items()},
    }


def _domain(
    units: pd.DataFrame, windows: pd.DataFrame, calibrations: dict[str, Calibration], domain: str
) -> dict[str, Any]:
    """Everything about one domain's test windows of one length."""
    mine = windows.loc[units["window"].unique()]
    sparse = units[units["is_sparse"]]
    work = mine["density"].to_numpy(dtype=np.float64)
    fallback = units.assign(dense=units["fallback"] == 2).groupby("window")["dense"].mean()
    documents = mine.loc[fallback.index, "document"]
    found = {
        "windows": len(mine),
        "documents": int(mine["document"].nunique()),
        "units": len(units),
        "sparse_units": len(sparse),
        "in_prompt": _in_prompt(sparse),
        "row": {
            "kept_at_q": _cover(sparse, sparse["row_q_covered"]),
            "kept_as_recorded": _cover(sparse, sparse["row_s_covered"]),
            "first_choice_at_q": _cover(
                units[units["first_row_covered"].notna()], units["first_row_covered"].dropna()
            ),
        },
        "conformal": {
            name: _conformal(sparse, c)
            for name, c in calibrations.items()
            if name in (domain, "mixed", "robust")
        },
        "fallback": {
            "expanded": float((units["fallback"] == 1).mean()),
            "dense_by_fallback": float((units["fallback"] == 2).mean()),
            "dense_by_fallback_interval": clustered_interval(fallback.to_numpy(), documents.to_numpy())
            if documents.nunique() > 1
            else None,
            "dense_by_router": float(((units["fallback"] == 0) & ~units["is_sparse"]).mean()),
            "attention_work": float(work.mean()),
        },
        "bounds": _bounds(sparse),
    }
    return found


def _cover(units: pd.DataFrame, covered: pd.Series | np.ndarray) -> dict[str, Any]:
    if not len(units):
        return {}
    return vars(
        summarise(np.asarray(covered, dtype=float), units["window"].to_numpy(), units["document"].to_numpy())
    )


def _in_prompt(sparse: pd.DataFrame) -> dict[str, Any]:
    tests = pd.DataFrame(
        {
            "lower": np.concatenate([*sparse["test_lower"], np.zeros(0)]),
            "true": np.concatenate([*sparse["test_true"], np.zeros(0)]),
        }
    )
    return {
        **_cover(sparse, sparse["true_mass"] >= sparse["lower"]),
        "median_gap": float((sparse["true_mass"] - sparse["lower"]).median()),
        "median_gap_bernstein": float((sparse["true_mass"] - sparse["bernstein"]).median()),
        "false_passes": int((sparse["true_mass"] < 0.9).sum()),
        "tests": len(tests),
        "tests_above_the_truth": int((tests["lower"] > tests["true"]).sum()),
    }


def _delta(units: pd.DataFrame, calibration: Calibration) -> np.ndarray:
    lengths = {n: calibration.delta(int(n), CONFIDENCE) for n in units["tokens"].unique()}
    return units["tokens"].map(lengths).to_numpy(dtype=np.float64)


def _conformal(sparse: pd.DataFrame, calibration: Calibration) -> dict[str, Any]:
    delta = _delta(sparse, calibration)
    if not np.isfinite(delta).all():
        return {"delta": None}
    low = (sparse["gate"] - delta).clip(0, 1)
    return {
        "delta": float(delta.max()),
        **_cover(sparse, sparse["target"] >= low),
        "body_mass_coverage": float((sparse["true_mass"] >= low).mean()),
        "median_target_gap": float((sparse["target"] - low).median()),
        "median_mass_gap": float((sparse["true_mass"] - low).median()),
        "zero_bounds": int((low == 0).sum()),
    }


def _bounds(sparse: pd.DataFrame) -> dict[str, Any]:
    """Violations over the audited rows; looseness (bound over error) over a sample of them, exact error beside it."""
    error = np.concatenate([*sparse["row_error"], np.zeros(0)])
    found: dict[str, Any] = {
        "violations": int(sparse["violations"].sum()),
        "audited_rows": int(sparse["rows"].sum()),
        "sampled_rows": len(error),
        "row_error": {"median": float(np.median(error)), "p95": float(np.quantile(error, 0.95))},
        "mean_relative_error": float(sparse["mean_error"].mean()),
    }
    some = error > 1e-6
    for name in ("paper", "tight"):
        ratio = np.concatenate([*sparse[f"row_{name}"], np.zeros(0)])[some] / error[some]
        found[f"looseness_{name}"] = {
            "median": float(np.median(ratio)),
            "p95": float(np.quantile(ratio, 0.95)),
        }
    return found


def _mixed(units: pd.DataFrame, windows: pd.DataFrame) -> dict[str, Any]:
    """The calibration domains with equal weights: fallback rate and attention work against their targets."""
    per = (
        units.assign(dense=units["fallback"] == 2).groupby(["domain", "window"])["dense"].mean().reset_index()
    )
    rate = float(per.groupby("domain")["dense"].mean().mean())
    mine = windows.loc[units["window"].unique()]
    work = float(mine.groupby("domain")["density"].mean().mean())
    return {
        "windows": len(mine),
        "documents": int(mine["document"].nunique()),
        "dense_by_fallback": rate,
        "dense_by_fallback_interval": clustered_interval(
            per["dense"].to_numpy(), mine.loc[per["window"], "document"].to_numpy()
        ),
        "attention_work": work,
        "meets_targets": bool(rate <= FALLBACK_TARGET and work <= WORK_TARGET),
    }


def _controls(
    units: pd.DataFrame, fold_b: pd.DataFrame, calibrations: dict[str, Calibration]
) -> dict[str, Any]:
    """What must lose coverage: delta from all candidates that the gate admits, and other rows."""
    sparse = units[units["is_sparse"]]
    found: dict[str, Any] = {}
    for domain in DOMAINS:
        gate = calibrations[domain].gate
        mine = sparse[(sparse["domain"] == domain) & (sparse["tokens"] <= BUCKETS[0][1])]
        made = fold_b[(fold_b["domain"] == domain) & (fold_b["tokens"] <= BUCKETS[0][1])]
        row = {"selected": _share(mine, calibrations[domain].delta(8_192, CONFIDENCE))}
        for name, least in (("all_admissible", gate), ("all_candidates", 0.0)):
            residuals = [_flattery(part, least) for _, part in made.groupby("window")]
            row[name] = _share(mine, conformal_delta(residuals, CONFIDENCE))
        long = sparse[(sparse["domain"] == domain) & (sparse["tokens"] > BUCKETS[0][1])]
        long = long[long["aligned_mass"].notna()]
        delta = calibrations["mixed"].delta(16_384, CONFIDENCE)
        for name, gates in (
            ("random_rows", long["gate"]),
            ("aligned_rows", np.minimum(long["aligned_mass"], long["recent_mass"])),
        ):
            row[f"{name}_16384"] = {
                "coverage": float((gates - long["target"] <= delta).mean()),
                "delta": delta,
            }
        row["aligned_in_prompt_16384"] = {
            "coverage": float((long["true_mass"] >= long["aligned_lower"]).mean()),
            "random_rows": float((long["true_mass"] >= long["lower"]).mean()),
        }
        found[domain] = row
    code = sparse[(sparse["domain"] == "code") & (sparse["tokens"] <= BUCKETS[0][1])]
    found["code_under_prose"] = _share(code, calibrations["prose"].delta(8_192, CONFIDENCE))
    return found


def _flattery(rows: pd.DataFrame, least: float) -> np.ndarray:
    """g - g* of every sparse candidate with g >= least."""
    gate = np.concatenate([x[:-1] for x in rows["gate_all"]])
    target = np.concatenate([x[:-1] for x in rows["target_all"]])
    return (gate - target)[gate >= least]


def _share(units: pd.DataFrame, delta: float) -> dict[str, Any]:
    return (
        {"delta": delta, **_cover(units, units["residual"] <= delta)}
        if np.isfinite(delta)
        else {"delta": None}
    )


def _drift(units: pd.DataFrame, calibrations: dict[str, Calibration]) -> dict[str, Any]:
    """Share of test windows on which each calibration's alarm goes off, by domain, with an interval over documents."""
    prompts = [
        (rows["domain"].iloc[0], rows["document"].iloc[0], int(rows["tokens"].iloc[0]), descriptors(rows)[1])
        for _, rows in units.groupby("window")
    ]
    found: dict[str, Any] = {}
    for name, calibration in calibrations.items():
        if calibration.drift is None or name == "robust":
            continue
        rows = []
        for domain, document, tokens, values in prompts:
            assessed = calibration.drift.assess(values, tokens)
            if assessed is not None:
                rows.append((domain, document, assessed.alarm, assessed.distance))
        frame = pd.DataFrame(rows, columns=["domain", "document", "alarm", "distance"])
        found[name] = {
            domain: {
                "windows": len(part),
                "alarms": int(part["alarm"].sum()),
                "rate": float(part["alarm"].mean()),
                "median_distance": float(part["distance"].median()),
            }
            for domain, part in frame.groupby("domain")
        }
    in_domain = [found[name][name] for name in DOMAINS if name in found and name in found[name]]
    found["in_domain"] = {
        "windows": sum(row["windows"] for row in in_domain),
        "alarms": sum(row["alarms"] for row in in_domain),
    }
    return found


def _grouped(units: pd.DataFrame, column: str) -> dict[str, Any]:
    """In-prompt coverage and the audited mass by family or layer, over all test domains."""
    sparse = units[units["is_sparse"]]
    return {
        str(name): {**_in_prompt(part), "mean_mass": float(part["true_mass"].mean())}
        for name, part in sparse.groupby(column)
    }


if __name__ == "__main__":
    main()
