"""Offline calibration (paper section 3.5): the conformal head certificate's delta_q, its stamp and its checks.

The unit is the prompt. Residuals g - g* are taken for the candidate that the frozen policy selects (calibrating on
all candidates loses ten points of coverage: winner's curse), with g* = min(true body mean, true recent mean) from
the dense audit. delta_q is the pooled quantile with equal prompt weights at level q (K + 1)/K, at least 0, infinite
where that level exceeds 1 (K prompts are too few). numpy only; the numbers come from ``calibrate/fit.py``.

A calibration belongs to a kernel backend and a dtype, and a dense tile's relative cost must agree within COST_FACTOR:
costs decide which candidate is "cheapest", so they are part of the policy that delta certifies.
"""

from __future__ import annotations

import dataclasses
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Annotated, Any, Literal

import numpy as np

from routesparse.engine import paths
from routesparse.engine.calibration import folders
from routesparse.engine.calibration.checks import (
    Fold,
    Summary,
    check_deltas,
    check_stamp,
    check_trees,
)
from routesparse.engine.calibration.drift import DriftReference, Part, Rate, check_reference
from routesparse.engine.config import RouterConfig, renamed
from routesparse.engine.errors import CalibrationError, shortened
from routesparse.engine.method import policy
from routesparse.engine.method.families import library_hash, stamped_families
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.predictor import ErrorPredictor
from routesparse.engine.schema import (
    Count,
    FieldError,
    Like,
    Object,
    Positive,
    Share,
    Text,
    check_tokens,
    checked,
    schema_of,
)

SCHEMA = 2
# A dense tile may be this much dearer or cheaper, in sparse tiles, than where delta was measured.
COST_FACTOR = 2.0
# A change of any of these changes what delta was measured on.
STAMPED = (
    *("policy", "budget", "beta", "solver", "tau", "tau_layer", "tau_head", "price", "confidence"),
    *("segment_tokens", "tail_tokens", "block_q", "block_k", "probe", "recent_rows", "routing_rows"),
    *("certificate_rows", "boundary_rows", "max_tests", "bound", "fallback"),
)
# What only eq. 6 reads: without a latency limit the gate rule alone chooses.
RISK_ONLY = ("beta", "solver")
# What one kind of policy reads alone. The price is not among them: it places the floors of every policy's library.
PRICED_ONLY = ("tau_layer", "tau_head")
PER_HEAD_ONLY = ("tau",)


@dataclass(frozen=True)
class Bucket:
    """delta_q for prompts of min_tokens to max_tokens, from K prompts; deltas by q ("0.95"), None for infinite."""

    min_tokens: Positive
    max_tokens: Positive
    prompts: Count
    deltas: dict[str, Share | None]
    documents: Count = 0
    units: Count = 0  # selected sparse units


@dataclass(frozen=True)
class CostModel:
    """What decided which candidate is cheapest: the profile's costs, in sparse tiles."""

    profile: Text
    backend: Text
    row: Rate
    column: Rate
    dense: Rate

    @classmethod
    def of(cls, profile: LatencyProfile) -> CostModel:
        """The relative costs of a latency profile."""
        costs = (profile.row_us, profile.column_us, profile.dense_tile_us)
        return cls(profile.name, profile.backend, *(cost / max(profile.tile_us, 1e-12) for cost in costs))


@dataclass(frozen=True)
class Calibration:
    """A calibration artifact. Device is provenance only; everything under ``stamp`` must match the run."""

    name: Text
    domain: Text
    gate_threshold: Part | None  # lambda, frozen on fold A; None: policy "priced", which has no common one
    alpha: Rate
    model: Text
    model_revision: Text
    library_hash: Text
    stamp: Object
    buckets: tuple[Bucket, ...]
    documents: tuple[Text, ...]  # sha256 of the calibration documents
    seed: Count
    provenance: Object
    dtype: Text = "float32"  # of the model when it was measured
    cost_model: CostModel | None = None
    folds: Annotated[dict[str, Any], Like(dict[Literal["A", "B"], Fold])] = field(default_factory=dict)
    prompts: tuple[Annotated[dict[str, Any], Like(Summary)], ...] = ()  # of both folds
    parts: tuple[Text, ...] = ()  # the domains of a calibration on several
    drift: DriftReference | None = None
    predictor: ErrorPredictor | None = None  # e, fitted on fold A

    def delta(self, tokens: int, confidence: float) -> float:
        """delta_q for a prompt of this length; infinite outside the calibrated lengths and confidences."""
        for bucket in self.buckets:
            if bucket.min_tokens <= tokens <= bucket.max_tokens:
                delta = bucket.deltas.get(f"{confidence:g}")
                return math.inf if delta is None else delta
        return math.inf

    def covers(self, pattern: str) -> bool:
        """Whether delta_q was measured where units could choose this pattern: not for a family registered later."""
        known = stamped_families(self.library_hash)
        return known is None or pattern in known

    def check(
        self,
        model_revision: str,
        config: RouterConfig,
        dtype: str | None = None,
        profile: LatencyProfile | None = None,
    ) -> None:
        """Errors: CalibrationError naming the first thing that differs between the stamp and this run."""
        found = self.mismatch(model_revision, config, dtype, profile)
        if found is not None:
            raise CalibrationError(f"{found}; or use it all the same with --force, which the record tells")

    def mismatch(
        self,
        model_revision: str,
        config: RouterConfig,
        dtype: str | None = None,
        profile: LatencyProfile | None = None,
    ) -> str | None:
        """What a check would refuse, in one sentence; None where everything fits.

        dtype and profile: None where the model is not loaded yet.
        """
        if self.model_revision != model_revision:
            return (
                f"calibration {self.name!r} was made for model {self.model!r} revision {self.model_revision}, "
                f"this model has revision {model_revision}; pass a calibration of this model, or none"
            )
        if stamped_families(self.library_hash) is None:
            return (
                f"calibration {self.name!r} was made with pattern library {self.library_hash}, this version has "
                f"{library_hash()}; calibrate again, or pass none"
            )
        if dtype not in (None, self.dtype):
            return (
                f"calibration {self.name!r} was made in {self.dtype}, this model runs in {dtype}; calibrate again "
                "in that dtype, or pass none"
            )
        unread = unread_by(config)
        for name, value in stamp_of(config).items():
            if name not in unread and self.stamp.get(name) != value:
                remedy = "calibrate again" if name in policy.constants() else "use the same value"
                return (
                    f"calibration {self.name!r} was made with {name} {self.stamp.get(name)!r}, this run has "
                    f"{value!r}; {remedy}, or pass no calibration"
                )
        return None if profile is None else self.cost_mismatch(profile)

    def cost_mismatch(self, profile: LatencyProfile) -> str | None:
        """Whether another candidate would be the cheapest here: another kernel, or far other costs of dense tiles.

        delta belongs to the selected candidate. Costs of one machine vary with its load, hence the wide factor.
        """
        if self.cost_model is None:
            return None
        here = CostModel.of(profile)
        if here.backend != self.cost_model.backend:
            return (
                f"calibration {self.name!r} chose the cheapest candidate for the {self.cost_model.backend} kernel, "
                f"this run uses {here.backend}; calibrate on this device, or pass none"
            )
        ratio = max(here.dense, 1e-9) / max(self.cost_model.dense, 1e-9)
        if not 1 / COST_FACTOR <= ratio <= COST_FACTOR:
            return (
                f"calibration {self.name!r} was made where a dense tile costs {self.cost_model.dense:.2f} sparse "
                f"tiles, profile {here.profile} says {here.dense:.2f}; calibrate with this profile, or pass none"
            )
        return None

    def overlap(self) -> list[str]:
        """sha256 of documents that are in both folds: there must be none."""
        folds = [{d["sha256"] for d in self.folds.get(fold, {}).get("documents", ())} for fold in ("A", "B")]
        return sorted(folds[0] & folds[1])

    def save(self, folder: Path) -> Path:
        """Write <folder>/<name>.json, replacing it whole."""
        return paths.write_json(folder / f"{self.name}.json", {"schema": SCHEMA, **dataclasses.asdict(self)})


def stamp_of(config: RouterConfig) -> dict[str, Any]:
    """What a calibration depends on: a part of the configuration, and the constants that steer choices."""
    values = config.to_dict()
    return {field: values[field] for field in STAMPED} | policy.constants()


def unread_by(config: RouterConfig) -> set[str]:
    """Names in a stamp that this configuration's policy never reads, so that they may differ."""
    unread = {*(PER_HEAD_ONLY if config.policy == "priced" else PRICED_ONLY)}
    if config.gates and config.budget is None:
        unread |= {*RISK_ONLY, *policy.solver_constants()}
    return unread


def load_calibration(name: str, owner: str | None = None) -> Calibration:
    """A bundled calibration by name, one made on this machine or by this owner, or one by path.

    Errors: CalibrationError.
    """
    found = folders.read(
        "calibration", "calibrate", name, folders.folders(owner), lambda values: _from_dict(name, values)
    )
    if found is None:
        raise CalibrationError(f"{_unknown(name)}; a path must end in .json")
    return found


def load_known(name: str, owner: str | None = None) -> Calibration:
    """The same by name only: a page's address must not name a file, such as another owner's.

    Errors: CalibrationError.
    """
    if name not in known(owner):
        raise CalibrationError(_unknown(name))
    return load_calibration(name, owner)


def _unknown(name: str) -> str:
    here = ", ".join(folders.names([paths.DATA / "calibrations"])) or "none"
    return f"no calibration {shortened(name)!r}; bundled ones: {here}"


def known(owner: str | None = None) -> list[str]:
    """The names of the bundled calibrations, of those made on this machine, and of this owner's."""
    return folders.names(folders.folders(owner))


def _from_dict(name: str, values: Any) -> Calibration:
    """Errors: FieldError for the first value outside its meaning; CalibrationError for another version's."""
    schema = schema_of(values)
    if schema != SCHEMA:
        told = "calibrate again" if schema < SCHEMA else "upgrade RouteSparse"
        raise CalibrationError(
            f"calibration {name!r} has schema {schema}; this version reads {SCHEMA}; {told}"
        )
    values = renamed(values, {"gate": "gate_threshold"})
    if isinstance(buckets := values.get("buckets"), list):
        # Older files, the bundled ones among them, also hold a histogram of residuals, which nothing reads.
        values["buckets"] = [_without_histogram(one) if isinstance(one, dict) else one for one in buckets]
    found = checked(Calibration, values)
    check_calibration(found)
    return found


def _without_histogram(bucket: dict[str, Any]) -> dict[str, Any]:
    return {name: value for name, value in bucket.items() if name != "histogram"}


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


def check_calibration(found: Calibration) -> None:
    """Errors: FieldError for the first value that means nothing; lambda is null under the policy "priced" alone."""
    check_stamp(found.stamp, "stamp")
    before = 0
    for place, bucket in enumerate(found.buckets):
        field = f"buckets[{place}]"
        if bucket.min_tokens <= before:  # every prompt has one bucket
            wanted = f"above {before}, where the bucket before it ends"
            raise FieldError(f"{field}.min_tokens", bucket.min_tokens, wanted)
        before = bucket.max_tokens
        _check_bucket(bucket, field)
    if found.drift is not None:
        check_reference(found.drift, "drift")
    if found.predictor is not None:
        check_trees(found.predictor, "predictor")
    policy_name = found.stamp.get("policy")
    if (policy_name == "priced") != (found.gate_threshold is None):
        wanted = "null" if policy_name == "priced" else "a number"
        raise FieldError("gate_threshold", found.gate_threshold, f"{wanted} under the policy {policy_name!r}")


def _check_bucket(bucket: Bucket, field: str) -> None:
    check_tokens(bucket, field)
    if bucket.documents > bucket.prompts:
        raise FieldError(f"{field}.documents", bucket.documents, f"at most the {bucket.prompts} prompts")
    check_deltas(bucket.deltas, bucket.prompts, f"{field}.deltas")
