"""Make a calibration (paper section 3.5): fit lambda on fold A, freeze it, take delta_q on fold B.

Folds are split by document. Fold A: lambda starts at the configuration's and moves to tau + delta_A(lambda) where
that is larger, at most twice, aiming at lambda - delta >= tau; fold B's delta is valid wherever lambda ends. Fold B:
residuals g - g* of the candidates that this frozen policy selects, g* = min(audited body mean, true recent mean);
sparse layers stay sparse upstream. delta_q for q in {.9, .95, .99} by ``calibration.conformal_delta``.

The optional predictor e and alpha keep their training-free values here.
"""

from __future__ import annotations

import datetime
import hashlib
from collections.abc import Iterable, Sequence
from dataclasses import replace
from typing import Any

import numpy as np
import torch

from routesparse.engine.calibration import Bucket, Calibration, conformal_delta, stamp_of
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.hf import routed_by
from routesparse.engine.latency import LatencyProfile
from routesparse.engine.models import LoadedModel
from routesparse.engine.patterns import library_hash
from routesparse.engine.profiling import Progress, no_progress
from routesparse.engine.provenance import versions
from routesparse.engine.session import RoutingSession

CONFIDENCES = (0.9, 0.95, 0.99)
AUDIT_ROWS = 512
GATE_ROUNDS = 2
GATE_STEP = 0.002  # lambda moves in these steps; a smaller change is none


def residuals(
    loaded: LoadedModel, token_ids: Sequence[int], config: RouterConfig, profile: LatencyProfile | str
) -> np.ndarray:
    """g - g* of every selected sparse unit of one prompt: [units]."""
    salt = hashlib.sha256(repr(tuple(token_ids)).encode()).hexdigest()
    session = RoutingSession(config, profile=profile, audit="rows", audit_rows=AUDIT_ROWS, salt=salt)
    ids = torch.tensor([list(token_ids)], device=loaded.model.device)
    with torch.no_grad(), routed_by(loaded.model, session):
        loaded.model(ids, logits_to_keep=1, use_cache=False)
    record = session.trace.record()
    choices = {(c.layer, c.head, c.segment): c for c in record.choices}
    found = []
    for audit in record.audits:
        choice = choices[audit.layer, audit.head, audit.segment]
        found.append(choice.gate - min(audit.mass, choice.recent_mass))
    return np.array(found)


def fit_gate(
    loaded: LoadedModel,
    fold: Sequence[Sequence[int]],
    config: RouterConfig,
    profile: LatencyProfile | str,
    progress: Progress = no_progress,
) -> float:
    """lambda on fold A. Errors: CalibrationError where the fold is too small for the configuration's q."""
    gate = config.gate_threshold
    for round_ in range(GATE_ROUNDS):
        frozen = replace(config, gate=gate)
        found = []
        for place, ids in enumerate(fold):
            progress("fold A", round_ * len(fold) + place, GATE_ROUNDS * len(fold))
            found.append(residuals(loaded, ids, frozen, profile))
        delta = conformal_delta(found, config.confidence)
        if not np.isfinite(delta):
            raise CalibrationError(
                f"fold A has {len(fold)} prompts, too few for q = {config.confidence:g}; use more prompts"
            )
        wanted = max(config.gate_threshold, config.tau + delta)
        wanted = min(0.999, float(np.ceil(wanted / GATE_STEP) * GATE_STEP))
        if abs(wanted - gate) < GATE_STEP:
            break
        gate = wanted
    return gate


def calibrate(
    loaded: LoadedModel,
    fold_a: Sequence[Sequence[int]],
    fold_b: Sequence[Sequence[int]],
    config: RouterConfig,
    *,
    name: str,
    domain: str,
    documents: Iterable[str],
    profile: LatencyProfile | str = "auto",
    provenance: dict[str, Any] | None = None,
    progress: Progress = no_progress,
) -> Calibration:
    """A calibration from token ids of prompts; documents: sha256 of every document that a prompt came from."""
    gate = fit_gate(loaded, fold_a, config, profile, progress)
    frozen = replace(config, gate=gate)
    found = []
    for place, ids in enumerate(fold_b):
        progress("fold B", place, len(fold_b))
        found.append(residuals(loaded, ids, frozen, profile))
    lengths = [len(ids) for ids in fold_b]
    deltas = {}
    for confidence in CONFIDENCES:
        delta = conformal_delta(found, confidence)
        deltas[f"{confidence:g}"] = delta if np.isfinite(delta) else None
    return Calibration(
        name=name,
        domain=domain,
        gate=gate,
        alpha=config.alpha,
        model=loaded.name,
        model_revision=loaded.revision,
        library_hash=library_hash(),
        stamp=stamp_of(config),
        buckets=(Bucket(min(lengths), max(lengths), sum(len(r) > 0 for r in found), deltas),),
        documents=tuple(sorted(documents)),
        seed=config.seed,
        provenance={
            "created_at": datetime.datetime.now(datetime.UTC).isoformat(timespec="seconds"),
            "device": loaded.device,
            "dtype": loaded.dtype,
            "versions": versions(),
            "fold_a_prompts": len(fold_a),
            "fold_b_prompts": len(fold_b),
            "residuals": int(sum(len(r) for r in found)),
            **(provenance or {}),
        },
    )
