"""Offline calibration (paper section 3.5): the conformal head certificate's delta_q, its stamp and its checks.

The unit is the prompt. Residuals g - g* are taken for the candidate that the frozen policy selects (calibrating on
all candidates loses ten points of coverage: winner's curse), with g* = min(true body mean, true recent mean) from
the dense audit. delta_q is the pooled quantile with equal prompt weights at level q (K + 1)/K, at least 0, infinite
where that level exceeds 1 (K prompts are too few). numpy only; the numbers come from ``calibrating.py``.
"""

from __future__ import annotations

import dataclasses
import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.patterns import library_hash
from routesparse.engine.predictor import ErrorPredictor

SCHEMA = 1
STAMPED = (  # a change of any of these changes what delta was measured on
    "policy",
    "budget",
    "beta",
    "solver",
    "tau",
    "confidence",
    "segment_tokens",
    "tail_tokens",
    "block_q",
    "block_k",
    "probe",
    "recent_rows",
    "routing_rows",
    "certificate_rows",
    "boundary_rows",
    "max_tests",
    "bound",
    "fallback",
)
# What only eq. 6 reads: without a latency limit the gate alone chooses.
RISK_ONLY = ("beta", "solver")


@dataclass(frozen=True)
class Bucket:
    """delta_q for prompts of min_tokens to max_tokens, from K prompts; deltas by q ("0.95"), None for infinite."""

    min_tokens: int
    max_tokens: int
    prompts: int
    deltas: dict[str, float | None]


@dataclass(frozen=True)
class Calibration:
    """A calibration artifact. Device is provenance only; everything under ``stamp`` must match the run."""

    name: str
    domain: str
    gate: float  # lambda, chosen on fold A and frozen
    alpha: float
    model: str
    model_revision: str
    library_hash: str
    stamp: dict[str, Any]
    buckets: tuple[Bucket, ...]
    documents: tuple[str, ...]  # sha256 of the calibration documents
    seed: int
    provenance: dict[str, Any]
    predictor: ErrorPredictor | None = None  # e, fitted on fold A

    def delta(self, tokens: int, confidence: float) -> float:
        """delta_q for a prompt of this length; infinite outside the calibrated lengths and confidences."""
        for bucket in self.buckets:
            if bucket.min_tokens <= tokens <= bucket.max_tokens:
                delta = bucket.deltas.get(f"{confidence:g}")
                return math.inf if delta is None else delta
        return math.inf

    def check(self, model_revision: str, config: RouterConfig) -> None:
        """Errors: CalibrationError naming the first thing that differs between the stamp and this run."""
        if self.model_revision != model_revision:
            raise CalibrationError(
                f"calibration {self.name!r} was made for model {self.model!r} revision {self.model_revision}, "
                f"this model has revision {model_revision}; pass a calibration of this model, or none"
            )
        if self.library_hash != library_hash():
            raise CalibrationError(
                f"calibration {self.name!r} was made with pattern library {self.library_hash}, this version has "
                f"{library_hash()}; calibrate again, or pass none"
            )
        values = config.to_dict()
        for field in STAMPED:
            if field in RISK_ONLY and config.policy == "certified" and config.budget is None:
                continue
            if self.stamp.get(field) != values[field]:
                raise CalibrationError(
                    f"calibration {self.name!r} was made with {field} {self.stamp.get(field)!r}, this run has "
                    f"{values[field]!r}; use the same value, or pass no calibration"
                )

    def save(self, folder: Path) -> Path:
        """Write <folder>/<name>.json, replacing it whole."""
        return paths.write_json(folder / f"{self.name}.json", {"schema": SCHEMA, **dataclasses.asdict(self)})


def stamp_of(config: RouterConfig) -> dict[str, Any]:
    """The part of a configuration that a calibration depends on."""
    values = config.to_dict()
    return {field: values[field] for field in STAMPED}


def load_calibration(name: str) -> Calibration:
    """A bundled calibration by name, or one by path. Errors: CalibrationError with the known names."""
    folder = paths.DATA / "calibrations"
    path = Path(name) if name.endswith(".json") else folder / f"{name}.json"
    if not path.is_file():
        known = ", ".join(sorted(p.stem for p in folder.glob("*.json"))) or "none"
        raise CalibrationError(f"no calibration {name!r}; bundled ones: {known}; a path must end in .json")
    try:
        values = json.loads(path.read_text())
        schema = values.pop("schema")
        if schema > SCHEMA:
            raise CalibrationError(
                f"calibration {name!r} has schema {schema}; this version reads up to {SCHEMA}"
            )
        buckets = tuple(Bucket(**bucket) for bucket in values.pop("buckets"))
        predictor = values.pop("predictor", None)
        values["predictor"] = None if predictor is None else ErrorPredictor.from_dict(predictor)
        calibration = Calibration(**{**values, "buckets": buckets, "documents": tuple(values["documents"])})
        if not (0 <= calibration.gate <= 1 and 0 <= calibration.alpha < math.inf):
            raise TypeError(f"gate {calibration.gate}, alpha {calibration.alpha}")
        return calibration
    except (
        json.JSONDecodeError,
        UnicodeDecodeError,
        KeyError,
        TypeError,
        AttributeError,
        ValueError,
    ) as error:
        raise CalibrationError(f"calibration {name!r} is corrupt ({error}); calibrate again") from None


def conformal_delta(residuals: list[np.ndarray], confidence: float) -> float:
    """delta_q = max(0, pooled quantile with equal prompt weights at level q (K + 1)/K), K prompts.

    residuals: one array of g - g* per prompt (prompts without a selected sparse unit are left out).
    Infinite where the level exceeds 1: K is below q/(1 - q), 19 prompts for q = .95.
    """
    kept = [np.asarray(r, dtype=np.float64) for r in residuals if len(r)]
    level = confidence * (len(kept) + 1) / len(kept) if kept else math.inf
    if level > 1.0:
        return math.inf
    values = np.concatenate(kept)
    weights = np.concatenate([np.full(len(r), 1.0 / (len(r) * len(kept))) for r in kept])
    order = np.argsort(values, kind="stable")
    cumulative = weights[order].cumsum()
    place = min(int(np.searchsorted(cumulative, level - 1e-12)), len(values) - 1)
    return max(0.0, float(values[order][place]))
