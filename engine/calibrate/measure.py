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
from routesparse.engine.calibrate.fit import AUDIT_ROWS, ERROR_ROWS, Folds, Recipe, Subject, calibrate
from routesparse.engine.calibrate.prompt_measure import PromptMeasure, UnitTruth
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
        """See ``Auditor.audit``."""
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


def measure_window(
    loaded: LoadedModel,
    window: Window,
    config: RouterConfig,
    profile: LatencyProfile,
    audit_rows: int | None = AUDIT_ROWS,
    error_rows: int = 0,
) -> PromptMeasure:
    """Route one window under ``config`` (its gate frozen) and audit it. The break-even length is not asked for."""
    auditor = CandidateAuditor(audit_rows, error_rows)
    session = RoutingSession(config, profile=profile, auditor=auditor, salt=window.sha256)
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
    costs = prepare_profile(recipe.profile, loaded, recipe.config, progress)
    rows = recipe.audit_rows or None

    def measure(windows: Sequence[Window], frozen: RouterConfig, errors: bool) -> list[PromptMeasure]:
        stage = "fold A" if errors else "fold B"
        found = []
        for place, window in enumerate(windows):
            progress(stage, place, len(windows))
            found.append(measure_window(loaded, window, frozen, costs, rows, ERROR_ROWS if errors else 0))
        progress(stage, len(windows), len(windows))
        return found

    subject = Subject(loaded.name, loaded.revision, loaded.dtype, loaded.device, costs)
    return calibrate(folds, recipe, subject, measure)


@dataclass(frozen=True)
class About:
    """What only a process that has the model knows. config: with the segments of its device."""

    subject: Subject
    config: RouterConfig


@dataclass(frozen=True)
class _Ask:
    """For ``About``. own_segment: False takes the segments that suit the device."""

    config: RouterConfig
    own_segment: bool
    profile: str


@dataclass(frozen=True)
class _Measure:
    """For a ``PromptMeasure``."""

    window: Window
    config: RouterConfig
    costs: LatencyProfile
    audit_rows: int | None
    error_rows: int


def opening(model: str, rope: RopeScaling | None, device: str) -> Open:
    """What each process opens. device: "auto" takes GPUs in turn."""
    return functools.partial(_opened, model, rope, device)


def ask(team: Team, opened: Open, config: RouterConfig, own_segment: bool, profile: str) -> About:
    """Load the model in one process and say what it is. Errors: ModelError, ProfileError."""
    found: list[About] = []
    piece = Piece(f"profile {profile}", _Ask(config, own_segment, profile))
    team.do(Work("profile", opened, [[piece]], lambda _, about: found.append(about), whole=True))
    return found[0]


def share_calibration(team: Team, opened: Open, folds: Folds, recipe: Recipe, about: About) -> Calibration:
    """``make_calibration`` by several processes, each window a piece; all is fitted here, in the order of the windows.

    So the calibration is that of one process bit for bit, where that one has as many threads and the same latency
    profile: on a CPU a sum's last digits depend on the number of threads. The profile is the first process's.
    Errors: CalibrationError, NumericsError.
    """
    rows = recipe.audit_rows or None

    def measure(windows: Sequence[Window], frozen: RouterConfig, errors: bool) -> list[PromptMeasure]:
        stage, error_rows = ("fold A", ERROR_ROWS) if errors else ("fold B", 0)
        found: dict[str, PromptMeasure] = {}
        names = [f"prompt {place} of document {window.document!r}" for place, window in enumerate(windows)]
        lots = [
            [Piece(name, _Measure(window, frozen, about.subject.profile, rows, error_rows))]
            for name, window in zip(names, windows, strict=True)
        ]

        def keep(piece: Piece, made: PromptMeasure) -> None:
            found[piece.name] = made

        team.do(Work(stage, opened, lots, keep, whole=True))
        return [found[name] for name in names]

    return calibrate(folds, recipe, about.subject, measure)


def _opened(model: str, rope: RopeScaling | None, device: str, place: int) -> Do:
    return functools.partial(_done, load_in_turn(model, place, rope=rope, device=device))


def _done(loaded: LoadedModel, given: _Ask | _Measure) -> About | PromptMeasure:
    if isinstance(given, _Measure):
        return measure_window(
            loaded, given.window, given.config, given.costs, given.audit_rows, given.error_rows
        )
    config = given.config
    if not given.own_segment:
        config = replace(config, segment_tokens=default_segment(loaded.on_gpu))
    costs = prepare_profile(given.profile, loaded, config)
    return About(Subject(loaded.name, loaded.revision, loaded.dtype, loaded.device, costs), config)
