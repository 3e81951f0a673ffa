"""Make a calibration (paper section 3.5): fit on fold A and freeze, take delta_q on fold B.

Fold A fixes the policy. lambda starts at the configuration's and moves to tau + delta_A(lambda) where that is larger,
at most twice, aiming at lambda - delta >= tau. Under the policy "priced" there is no lambda to fit: each unit's own
follows from the price, and delta says only how far g flatters what was chosen. alpha is the slope of the gate's
flattery g - g* on the disagreement u over all sparse candidates. e is the error predictor. Fold B is measured under
that frozen policy: residuals g - g* of the candidates that it selects, in buckets by length; delta_q for q in {.9,
.95, .99} by ``conformal_delta``. Of several groups of prompts (domains) the residuals are pooled with equal prompt
weights; *robust* takes the largest delta over the groups instead, valid for each of them and their mixtures.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from routesparse.engine.calibrate.predictor_fit import fit_predictor
from routesparse.engine.calibrate.prompts import Document, Window, cut, split_folds
from routesparse.engine.calibration.artifact import Bucket, Calibration, CostModel, conformal_delta, stamp_of
from routesparse.engine.calibration.drift import fit_reference
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.method.families import library_hash
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.predictor import ErrorPredictor
from routesparse.engine.provenance import now, versions

CONFIDENCES = (0.9, 0.95, 0.99)
GATE_ROUNDS = 2
GATE_STEP = 0.002  # lambda moves in these steps; a smaller change is none
LARGEST_GATE = 0.999
HELD_OUT_SHARE = 0.25  # of fold A's documents, for the predictor's quality

AUDIT_ROWS = 512
ERROR_ROWS = 64  # output errors cost more than masses, and the predictor averages over many units


@dataclass(frozen=True)
class UnitTruth:
    """The U units of one layer and segment, C candidates, dense last. float32 but for the choice."""

    layer: int
    segment: int
    chosen: np.ndarray  # int64 [U]
    gate_statistic: np.ndarray  # [U, C], g
    target: np.ndarray  # [U, C], g* = min(true body mean, recent mean)
    disagreement: np.ndarray  # [U, C], u
    entropy: np.ndarray  # [U]
    error: np.ndarray | None  # [U, C], E_rel

    @property
    def sparse(self) -> np.ndarray:
        """bool [U]."""
        return self.chosen != self.gate_statistic.shape[1] - 1

    @property
    def residual(self) -> np.ndarray:
        """g - g* of the selected candidate of every sparse unit."""
        units = np.flatnonzero(self.sparse)
        place = self.chosen[units]
        return (self.gate_statistic[units, place] - self.target[units, place]).astype(np.float64)


@dataclass(frozen=True)
class PromptMeasure:
    """One prompt under one frozen policy."""

    domain: str
    document: str
    document_sha256: str
    sha256: str  # of the token ids
    tokens: int
    density: float  # kept share of the causal area, tail included
    descriptor_names: tuple[str, ...]
    descriptors: np.ndarray  # [D]
    truths: tuple[UnitTruth, ...]

    @property
    def residual(self) -> np.ndarray:
        """g - g* of every selected sparse unit."""
        return np.concatenate([t.residual for t in self.truths]) if self.truths else np.zeros(0)


Folds = tuple[list[Window], list[Window]]
# (windows, config with the gate to use, measure output errors) -> one PromptMeasure per window, in order
Measure = Callable[[Sequence[Window], RouterConfig, bool], Sequence[PromptMeasure]]


@dataclass(frozen=True)
class Subject:
    """What is calibrated: the model and the costs that decide which candidate is cheapest."""

    model: str
    revision: str
    dtype: str
    device: str
    profile: LatencyProfile


@dataclass(frozen=True)
class Recipe:
    """What to calibrate on, apart from the documents. lengths: buckets (least, most tokens)."""

    name: str
    domain: str
    config: RouterConfig
    lengths: Sequence[tuple[int, int]]
    sizes: tuple[int, int] = (24, 60)  # prompts of fold A and of fold B, per group of documents and bucket
    audit_rows: int = AUDIT_ROWS  # body rows audited per unit; 0: all of them
    robust: bool = False
    profile: str = "auto"
    command: str = "routesparse calibrate"


def cut_folds(groups: Mapping[str, Sequence[Document]], recipe: Recipe, tokenizer: Any) -> Folds:
    """Windows of both folds. groups: documents by name; each group is split by document and weighs the same.

    Errors: CalibrationError where a group has too few documents that are long enough, or one twice.
    """
    folds: Folds = ([], [])
    seed, sizes = recipe.config.seed, recipe.sizes
    for documents in groups.values():
        usable = [d for d in documents if d.tokens >= recipe.lengths[0][0]]
        if documents and len(usable) < 2:
            raise CalibrationError(
                f"{len(usable)} of {len(documents)} documents have the {recipe.lengths[0][0]:,} tokens of the shortest "
                f"prompt, the longest has {max(d.tokens for d in documents):,}; the two folds need two: pass longer "
                "ones, or shorter prompts by --tokens"
            )
        parts = split_folds(usable, sizes[0] / sum(sizes), seed)
        for fold, part, count in zip(folds, parts, sizes, strict=True):
            for least, most in recipe.lengths:
                fold += cut(part, count, least, most, tokenizer, seed)
    return folds


def calibrate(folds: Folds, recipe: Recipe, subject: Subject, measure: Measure) -> Calibration:
    """Measure both folds and put the calibration together.

    Errors: CalibrationError where a fold is too small for the configuration's q, or a document is in both; those of
    ``measure``.
    """
    fold_a, fold_b = folds
    shared = {w.document_sha256 for w in fold_a} & {w.document_sha256 for w in fold_b}
    if shared:
        raise CalibrationError(f"{len(shared)} document is in both folds; a document belongs to one of them")
    gate, measured_a = fit_gate(fold_a, recipe.config, measure, recipe.robust)
    frozen = replace(recipe.config, gate_threshold=gate, alpha=fit_alpha(measured_a))
    measured_b = list(measure(fold_b, frozen, False))
    made = {"command": recipe.command, "audit_rows": recipe.audit_rows or "body"}
    return assemble(measured_a, measured_b, replace(recipe, config=frozen), subject, made)


def fit_gate(
    fold: Sequence[Window], config: RouterConfig, measure: Measure, robust: bool = False
) -> tuple[float | None, list[PromptMeasure]]:
    """lambda on fold A, and fold A as measured with it; None and one measuring under the policy "priced".

    Errors: CalibrationError where the fold is too small to fit lambda.
    """
    if config.policy == "priced":
        return None, list(measure(fold, replace(config, gate_threshold=None), True))
    gate = config.effective_gate_threshold
    measured: list[PromptMeasure] = []
    for _ in range(GATE_ROUNDS):
        measured = list(measure(fold, replace(config, gate_threshold=gate), True))
        wanted = wanted_gate(measured, config, robust)
        if abs(wanted - gate) < GATE_STEP:
            return gate, measured
        gate = wanted
    return gate, list(measure(fold, replace(config, gate_threshold=gate), True))


def wanted_gate(measured: Sequence[PromptMeasure], config: RouterConfig, robust: bool = False) -> float:
    """The lambda that fold A asks for: tau + delta_A, at least the configuration's, in whole steps."""
    delta = largest_delta(measured, config.confidence, robust)
    if not np.isfinite(delta):
        raise CalibrationError(
            f"fold A has {sum(len(m.residual) > 0 for m in measured)} prompts with a sparse head (of "
            f"{len(measured)}), too few for q = {config.confidence:g}; use more or longer prompts"
        )
    wanted = float(np.ceil((config.tau + delta) / GATE_STEP) * GATE_STEP)
    return min(LARGEST_GATE, max(config.effective_gate_threshold, wanted))


def largest_delta(measured: Sequence[PromptMeasure], confidence: float, robust: bool) -> float:
    """delta_q of some prompts; robust: the largest over their domains."""
    if not robust:
        return conformal_delta([m.residual for m in measured], confidence)
    domains = sorted({m.domain for m in measured})
    return max(
        conformal_delta([m.residual for m in measured if m.domain == domain], confidence)
        for domain in domains
    )


def assemble(
    measured_a: Sequence[PromptMeasure],
    measured_b: Sequence[PromptMeasure],
    recipe: Recipe,
    subject: Subject,
    provenance: dict[str, Any],
) -> Calibration:
    """The artifact from both folds as measured; the recipe's configuration holds the frozen gate and alpha."""
    assert (recipe.config.gate_threshold is None) == (recipe.config.policy == "priced")
    both = [*measured_a, *measured_b]
    return Calibration(
        name=recipe.name,
        domain=recipe.domain,
        gate_threshold=recipe.config.gate_threshold,
        alpha=recipe.config.alpha,
        model=subject.model,
        model_revision=subject.revision,
        library_hash=library_hash(),
        stamp=stamp_of(recipe.config),
        buckets=tuple(make_bucket(measured_b, least, most, recipe.robust) for least, most in recipe.lengths),
        documents=tuple(sorted({m.document_sha256 for m in both})),
        seed=recipe.config.seed,
        dtype=subject.dtype,
        cost_model=CostModel.of(subject.profile),
        folds={"A": _fold(measured_a), "B": _fold(measured_b)},
        prompts=tuple(
            _summary(fold, m) for fold, part in (("A", measured_a), ("B", measured_b)) for m in part
        ),
        parts=tuple(sorted({m.domain for m in both})),
        drift=fit_reference(
            both[0].descriptor_names,
            np.stack([m.descriptors for m in both]),
            np.array([m.tokens for m in both], dtype=np.float64),
            [m.document_sha256 for m in both],
            [m.domain for m in both],
            min(least for least, _ in recipe.lengths),
            max(most for _, most in recipe.lengths),
        ),
        predictor=fit_error(measured_a, recipe.config.seed),
        provenance={
            "created_at": now(),
            "device": subject.device,
            "dtype": subject.dtype,
            "versions": versions(),
            "robust": recipe.robust,
            **provenance,
        },
    )


def make_bucket(measured: Sequence[PromptMeasure], least: int, most: int, robust: bool) -> Bucket:
    """delta_q of the prompts in [least, most] tokens. K counts the prompts with a selected sparse unit."""
    inside = [m for m in measured if least <= m.tokens <= most and len(m.residual)]
    deltas = {}
    for confidence in CONFIDENCES:
        delta = largest_delta(inside, confidence, robust) if inside else np.inf
        deltas[f"{confidence:g}"] = delta if np.isfinite(delta) else None
    return Bucket(
        min_tokens=least,
        max_tokens=most,
        prompts=len(inside),
        deltas=deltas,
        documents=len({m.document_sha256 for m in inside}),
        units=sum(len(m.residual) for m in inside),
    )


def fit_alpha(measured: Sequence[PromptMeasure]) -> float:
    """alpha = max(0, sum w u (g - g*) / sum w u^2) over all sparse candidates, equal prompt weights w.

    With it 1 - g + alpha u estimates 1 - g*, the loss that the risk (eq. 4) stands for. It is 0 in all five shipped
    calibrations, because g is a minimum of two means already.
    """
    above = below = 0.0
    for m in measured:
        u = np.concatenate([t.disagreement[:, :-1].ravel() for t in m.truths]).astype(np.float64)
        flattery = np.concatenate([(t.gate_statistic - t.target)[:, :-1].ravel() for t in m.truths]).astype(
            np.float64
        )
        above += float((u * flattery).mean())
        below += float((u * u).mean())
    return max(0.0, above / below) if below > 0 else 0.0


def fit_error(measured: Sequence[PromptMeasure], seed: int) -> ErrorPredictor | None:
    """e from all sparse candidates of fold A; None where output errors were not measured.

    Its quality is that of a fit without some documents, not windows, on these: windows of one text are alike.
    """
    if not measured:
        return None
    features, errors, prompts = [], [], []
    for place, m in enumerate(measured):
        for t in m.truths:
            if t.error is None:
                return None
            entropy = np.broadcast_to(t.entropy[:, None], t.gate_statistic.shape)
            columns = [x[:, :-1].ravel() for x in (t.gate_statistic, t.disagreement, entropy)]
            features.append(np.stack(columns, 1).astype(np.float64))
            errors.append(t.error[:, :-1].ravel().astype(np.float64))
            prompts.append(np.full(len(errors[-1]), place))
    prompt = np.concatenate(prompts)
    held_out = held_out_prompts([m.document_sha256 for m in measured])[prompt]
    return fit_predictor(np.concatenate(features), np.concatenate(errors), prompt, held_out, seed)


def held_out_prompts(documents: Sequence[str]) -> np.ndarray:
    """bool [prompts]: those of every fourth document, of the last of two or three; none where there is one alone."""
    names = sorted(set(documents))
    step = min(round(1 / HELD_OUT_SHARE), len(names))
    chosen = names[step - 1 :: step] if step > 1 else []
    return np.isin(documents, chosen)


def _fold(measured: Sequence[PromptMeasure]) -> dict[str, Any]:
    documents = {m.document_sha256: m.document for m in measured}
    return {
        "prompts": len(measured),
        "documents": [
            {"name": name, "sha256": sha, "prompts": sum(m.document_sha256 == sha for m in measured)}
            for sha, name in sorted(documents.items(), key=lambda item: item[1])
        ],
    }


def _summary(fold: str, m: PromptMeasure) -> dict[str, Any]:
    residual = m.residual
    some = len(residual) > 0
    return {
        "fold": fold,
        "domain": m.domain,
        "document": m.document,
        "sha256": m.sha256,
        "tokens": m.tokens,
        "units": len(residual),
        "mean": float(residual.mean()) if some else None,
        "q95": float(np.quantile(residual, 0.95)) if some else None,
        "max": float(residual.max()) if some else None,
        "density": m.density,
    }
