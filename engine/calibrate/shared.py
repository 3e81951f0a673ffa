"""A calibration whose prompts are measured by several processes.

Each window is a piece; what is fitted to them is fitted here, in the order of the windows. So the calibration is that
of one process bit for bit, where that one has as many threads and the same latency profile: on a CPU a sum's last
digits depend on the number of threads. The profile is found, or measured, by the first process and handed to all.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace

from routesparse.engine.calibrate.fit import Subject
from routesparse.engine.calibrate.prompt_measure import PromptMeasure
from routesparse.engine.calibrate.prompts import Window
from routesparse.engine.calibrate.recipe import ERROR_ROWS, Folds, Recipe, fitted
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import RouterConfig, default_segment
from routesparse.engine.crew.share import Team
from routesparse.engine.crew.work import Do, Piece, Work
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.load import LoadedModel, load_in_turn
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.profiles.measure import prepare_profile

Open = Callable[[int], Do]


@dataclass(frozen=True)
class About:
    """What only a process that has the model knows. config: with the segments of its device."""

    subject: Subject
    config: RouterConfig
    max_tokens: int


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


def opening(
    model: str, rope: RopeScaling | None, device: str, measure_window: Callable[..., PromptMeasure]
) -> Open:
    """What each process opens. device: "auto" takes GPUs in turn. measure_window: of measure.py."""
    return functools.partial(_opened, model, rope, device, measure_window)


def ask(team: Team, opened: Open, config: RouterConfig, own_segment: bool, profile: str) -> About:
    """Load the model in one process and say what it is. Errors: ModelError, ProfileError."""
    found: list[About] = []
    piece = Piece(f"profile {profile}", _Ask(config, own_segment, profile))
    team.do(Work("profile", opened, [[piece]], lambda _, about: found.append(about), whole=True))
    return found[0]


def share_calibration(team: Team, opened: Open, folds: Folds, recipe: Recipe, about: About) -> Calibration:
    """Measure both folds and fit. Errors: CalibrationError, NumericsError."""
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

    return fitted(folds, recipe, about.subject, measure)


def _opened(
    model: str,
    rope: RopeScaling | None,
    device: str,
    measure_window: Callable[..., PromptMeasure],
    place: int,
) -> Do:
    return functools.partial(_done, measure_window, load_in_turn(model, place, rope=rope, device=device))


def _done(
    measure_window: Callable[..., PromptMeasure], loaded: LoadedModel, given: _Ask | _Measure
) -> About | PromptMeasure:
    if isinstance(given, _Measure):
        return measure_window(
            loaded, given.window, given.config, given.costs, given.audit_rows, given.error_rows
        )
    config = given.config
    if not given.own_segment:
        config = replace(config, segment_tokens=default_segment(loaded.on_gpu))
    costs = prepare_profile(given.profile, loaded, config)
    subject = Subject(loaded.name, loaded.revision, loaded.dtype, loaded.device, costs)
    return About(subject, config, loaded.max_tokens)
