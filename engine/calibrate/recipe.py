"""What to calibrate on: the settings, and the two folds of prompts cut from documents (paper section 3.5)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from routesparse.engine.calibrate.fit import Measure, Subject, calibrate
from routesparse.engine.calibrate.prompts import Document, Window, cut, split_folds
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError

AUDIT_ROWS = 512
ERROR_ROWS = 64  # output errors cost more than masses, and the predictor averages over many units
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


def fitted(folds: Folds, recipe: Recipe, subject: Subject, measure: Measure) -> Calibration:
    """The recipe's calibration. Errors: CalibrationError, and those of ``measure``."""
    return calibrate(
        *folds,
        recipe.config,
        subject,
        measure,
        name=recipe.name,
        domain=recipe.domain,
        lengths=recipe.lengths,
        robust=recipe.robust,
        provenance={"command": recipe.command, "audit_rows": recipe.audit_rows or "body"},
    )
