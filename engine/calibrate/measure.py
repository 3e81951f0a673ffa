"""What calibration prompts tell: the gate statistic of every candidate, and the truth (paper section 3.5).

The prompt is routed by the frozen policy, sparse layers upstream included; on random body rows that no other step
has read, every candidate is audited (``audit/candidates.py``).
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

import numpy as np
import torch

from routesparse.engine.audit.candidates import candidate_errors, candidate_masses, draw_body_rows
from routesparse.engine.audit.rows import Auditor, Executed
from routesparse.engine.calibrate.fit import (
    AUDIT_ROWS,
    ERROR_ROWS,
    Folds,
    PromptMeasure,
    Recipe,
    Subject,
    UnitTruth,
    calibrate,
)
from routesparse.engine.calibrate.prompts import Window
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.calibration.drift import describe_prompt
from routesparse.engine.config import RouterConfig, default_segment
from routesparse.engine.crew.share import Team
from routesparse.engine.crew.work import Do, Piece, Work
from routesparse.engine.decide.decision import Decision, LayerSettings
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.router import gate_statistic
from routesparse.engine.models.load import LoadedModel, load_in_turn
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.profiles.measure import prepare_profile
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.rows import Audited
from routesparse.engine.runtime.session import RoutingSession
from routesparse.engine.runtime.transformers import routed_by

Open = Callable[[int], Do]


class CandidateAuditor(Auditor):
    """Keeps the truth about all candidates of every unit, and leaves no row in the run's record."""

    def __init__(self, rows: int | None, error_rows: int) -> None:
        """rows: None audits the whole body. error_rows: 0 leaves the output errors out."""
        self.truths: list[UnitTruth] = []
        self._rows, self._error_rows = rows, error_rows

    def audit(
        self, inputs: AttentionInputs, decision: Decision, settings: LayerSettings, executed: Executed
    ) -> Audited:
        rows = draw_body_rows(inputs, decision, self._rows, settings.seed)
        true = candidate_masses(inputs, decision, rows, settings.config).double().mean(2)
        error = None
        if self._error_rows:
            some = draw_body_rows(inputs, decision, self._error_rows, settings.seed)
            error = candidate_errors(inputs, decision, some).flatten(0, 1).float().numpy()
        scores = decision.scores
        target = gate_statistic(true.flatten(0, 1).cpu().numpy(), scores.recent_mass)
        self.truths.append(
            UnitTruth(
                layer=decision.layer,
                segment=decision.segment.index,
                chosen=decision.certified.choice,
                gate_statistic=scores.gate_statistic.astype(np.float32),
                target=target.astype(np.float32),
                disagreement=scores.disagreement.astype(np.float32),
                entropy=decision.entropy.astype(np.float32),
                error=error,
            )
        )
        return Audited()


@dataclass(frozen=True)
class MeasureWindow:
    """Route one window under a configuration (its gate frozen) and audit it. The break-even length is not asked for."""

    window: Window
    config: RouterConfig
    profile: LatencyProfile
    audit_rows: int | None = AUDIT_ROWS
    error_rows: int = 0

    def __call__(self, loaded: LoadedModel) -> PromptMeasure:
        window, auditor = self.window, CandidateAuditor(self.audit_rows, self.error_rows)
        session = RoutingSession(self.config, profile=self.profile, auditor=auditor, salt=window.sha256)
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
            truths=tuple(auditor.truths),
        )


@torch.no_grad()
def prefill(loaded: LoadedModel, token_ids: Sequence[int], session: RoutingSession) -> None:
    """One routed prefill of the model."""
    ids = torch.tensor([list(token_ids)], device=loaded.model.device)
    with routed_by(loaded.model, session):
        loaded.model(ids, logits_to_keep=1, use_cache=False)


def make_calibration(
    loaded: LoadedModel, folds: Folds, recipe: Recipe, progress: Progress = no_progress
) -> Calibration:
    """Measure both folds and fit. Progress has the stages "profile" (where one is measured), "fold A" and "fold B".

    Errors: CalibrationError, ProfileError, ConfigError, NumericsError; nothing is written but a measured profile.
    """
    subject = subject_of(loaded, recipe.config, recipe.profile, progress)

    def measure(stage: str, asked: Sequence[MeasureWindow]) -> list[PromptMeasure]:
        found = []
        for place, one in enumerate(asked):
            progress(stage, place, len(asked))
            found.append(one(loaded))
        progress(stage, len(asked), len(asked))
        return found

    return _calibrated(folds, recipe, subject, measure)


def share_calibration(
    team: Team, opened: Open, folds: Folds, recipe: Recipe, subject: Subject
) -> Calibration:
    """``make_calibration`` by several processes, each window a piece; all is fitted here, in the order of the windows.

    So the calibration is that of one process bit for bit, where that one has as many threads and the same latency
    profile: on a CPU a sum's last digits depend on the number of threads. The profile is the first process's.
    Errors: CalibrationError, NumericsError.
    """

    def measure(stage: str, asked: Sequence[MeasureWindow]) -> list[PromptMeasure]:
        found: dict[str, PromptMeasure] = {}
        names = [f"prompt {n} of document {one.window.document!r}" for n, one in enumerate(asked)]
        lots = [[Piece(name, one)] for name, one in zip(names, asked, strict=True)]

        def keep(piece: Piece, made: PromptMeasure) -> None:
            found[piece.name] = made

        team.do(Work(stage, opened, lots, keep, whole=True))
        return [found[name] for name in names]

    return _calibrated(folds, recipe, subject, measure)


def _calibrated(
    folds: Folds,
    recipe: Recipe,
    subject: Subject,
    measure: Callable[[str, Sequence[MeasureWindow]], list[PromptMeasure]],
) -> Calibration:
    def of_fold(windows: Sequence[Window], frozen: RouterConfig, errors: bool) -> list[PromptMeasure]:
        stage, error_rows = ("fold A", ERROR_ROWS) if errors else ("fold B", 0)
        rows = recipe.audit_rows or None
        asked = [MeasureWindow(window, frozen, subject.profile, rows, error_rows) for window in windows]
        return measure(stage, asked)

    return calibrate(folds, recipe, subject, of_fold)


def subject_of(
    loaded: LoadedModel, config: RouterConfig, profile: str, progress: Progress = no_progress
) -> Subject:
    """What is calibrated, by the latency profile of this name. Errors: ProfileError."""
    costs = prepare_profile(profile, loaded, config, progress)
    return Subject(loaded.name, loaded.revision, loaded.dtype, loaded.device, costs)


@dataclass(frozen=True)
class Ask:
    """A piece of work for a process that has the model: what it is, and the configuration for its device."""

    config: RouterConfig
    own_segment: bool  # False takes the segments that suit the device
    profile: str

    def __call__(self, loaded: LoadedModel) -> tuple[Subject, RouterConfig]:
        segment = self.config.segment_tokens if self.own_segment else default_segment(loaded.on_gpu)
        config = replace(self.config, segment_tokens=segment)
        return subject_of(loaded, config, self.profile), config


def opening(model: str, rope: RopeScaling | None) -> Open:
    """What each process opens: a model, on GPUs in turn, for pieces of work that take it."""
    return functools.partial(_opened, model, rope)


def ask(team: Team, opened: Open, asked: Ask) -> tuple[Subject, RouterConfig]:
    """Load the model in one process and say what it is. Errors: ModelError, ProfileError."""
    found: list[tuple[Subject, RouterConfig]] = []
    piece = Piece(f"profile {asked.profile}", asked)
    team.do(Work("profile", opened, [[piece]], lambda _, told: found.append(told), whole=True))
    return found[0]


def _opened(model: str, rope: RopeScaling | None, place: int) -> Do:
    loaded = load_in_turn(model, place, rope=rope)
    return lambda work: work(loaded)
