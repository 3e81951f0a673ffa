"""What one calibration prompt tells: the gate statistic of every candidate, and the truth (paper section 3.5).

The prompt is routed by the frozen policy, sparse layers upstream included; on random body rows that no other step
has read, every candidate is audited (``candidate_audit.py``).
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch

from routesparse.engine.audit import Executed
from routesparse.engine.candidate_audit import candidate_errors, candidate_masses, draw_body_rows
from routesparse.engine.config import RouterConfig
from routesparse.engine.drift import describe_prompt
from routesparse.engine.hf import routed_by
from routesparse.engine.latency import LatencyProfile
from routesparse.engine.layer import Decision
from routesparse.engine.models import LoadedModel
from routesparse.engine.probe import AttentionInputs
from routesparse.engine.records import AuditRow
from routesparse.engine.session import RoutingSession

if TYPE_CHECKING:
    from routesparse.engine.calibration_prompts import Window

AUDIT_ROWS = 512
ERROR_ROWS = 64  # output errors cost more than masses, and the predictor averages over many units


@dataclass(frozen=True)
class UnitTruth:
    """The U units of one layer and segment, C candidates, dense last. float32 but for the choice."""

    layer: int
    segment: int
    chosen: np.ndarray  # int64 [U]
    gate: np.ndarray  # [U, C], g
    target: np.ndarray  # [U, C], g* = min(true body mean, recent mean)
    disagreement: np.ndarray  # [U, C], u
    entropy: np.ndarray  # [U]
    error: np.ndarray | None  # [U, C], E_rel

    @property
    def sparse(self) -> np.ndarray:
        """bool [U]."""
        return self.chosen != self.gate.shape[1] - 1

    @property
    def residual(self) -> np.ndarray:
        """g - g* of the selected candidate of every sparse unit."""
        units = np.flatnonzero(self.sparse)
        place = self.chosen[units]
        return (self.gate[units, place] - self.target[units, place]).astype(np.float64)


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


class CalibrationSession(RoutingSession):
    """A routing session whose audit looks at all candidates."""

    def __init__(
        self,
        config: RouterConfig,
        profile: LatencyProfile | str,
        salt: str,
        audit_rows: int | None = AUDIT_ROWS,
        error_rows: int = 0,
    ) -> None:
        """audit_rows: None audits the whole body. error_rows: 0 leaves the output errors out."""
        super().__init__(config, profile=profile, audit="rows", salt=salt)
        self.truths: list[UnitTruth] = []
        self._rows, self._error_rows = audit_rows, error_rows

    def _audit(self, inputs: AttentionInputs, decision: Decision, executed: Executed) -> list[AuditRow]:
        rows = draw_body_rows(inputs, decision, self._rows, self._seed())
        true = candidate_masses(inputs, decision, rows, self.config).double().mean(2)
        error = None
        if self._error_rows:
            some = draw_body_rows(inputs, decision, self._error_rows, self._seed())
            error = candidate_errors(inputs, decision, some).flatten(0, 1).float().numpy()
        scores = decision.scores
        target = np.minimum(true.flatten(0, 1).cpu().numpy(), scores.recent_mass)
        self.truths.append(
            UnitTruth(
                layer=decision.layer,
                segment=decision.segment.index,
                chosen=decision.certified.choice,
                gate=scores.gate.astype(np.float32),
                target=target.astype(np.float32),
                disagreement=scores.disagreement.astype(np.float32),
                entropy=decision.entropy.astype(np.float32),
                error=error,
            )
        )
        return []


def measure_window(
    loaded: LoadedModel,
    window: Window,
    config: RouterConfig,
    profile: LatencyProfile | str,
    audit_rows: int | None = AUDIT_ROWS,
    error_rows: int = 0,
) -> PromptMeasure:
    """Route one window under ``config`` (its gate frozen) and audit it. The break-even length is not asked for."""
    session = CalibrationSession(config, profile, window.sha256, audit_rows, error_rows)
    prefill(loaded, window.token_ids, session)
    record = session.trace.record()
    names, values = describe_prompt(record.choices)
    return PromptMeasure(
        domain=window.domain,
        document=window.document,
        document_sha256=window.document_sha256,
        sha256=window.sha256,
        tokens=window.tokens,
        density=float(record.run.density or 1.0),
        descriptor_names=names,
        descriptors=values,
        truths=tuple(session.truths),
    )


@torch.no_grad()
def prefill(loaded: LoadedModel, token_ids: Sequence[int], session: RoutingSession) -> None:
    """One routed prefill of the model."""
    ids = torch.tensor([list(token_ids)], device=loaded.model.device)
    with routed_by(loaded.model, session):
        loaded.model(ids, logits_to_keep=1, use_cache=False)
