"""A calibration from documents: cut the folds, measure both, fit. The command line and the worker share it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routesparse.engine.calibrate.fit import Subject, calibrate
from routesparse.engine.calibrate.measure import AUDIT_ROWS, ERROR_ROWS, measure_window
from routesparse.engine.calibrate.prompt_measure import PromptMeasure
from routesparse.engine.calibrate.prompts import Document, Window, cut, split_folds
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.profiles.measure import prepare_profile
from routesparse.engine.progress import Progress, no_progress

Folds = tuple[list[Window], list[Window]]


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
        parts = split_folds(usable, sizes[0] / sum(sizes), seed)
        for fold, part, count in zip(folds, parts, sizes, strict=True):
            for least, most in recipe.lengths:
                fold += cut(part, count, least, most, tokenizer, seed)
    return folds


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

    return calibrate(
        *folds,
        recipe.config,
        Subject(loaded.name, loaded.revision, loaded.dtype, loaded.device, costs),
        measure,
        name=recipe.name,
        domain=recipe.domain,
        lengths=recipe.lengths,
        robust=recipe.robust,
        provenance={"command": recipe.command, "audit_rows": recipe.audit_rows or "body"},
    )
