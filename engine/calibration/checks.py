"""How the values of a calibration file must fit each other; FieldError names the first that does not."""

from __future__ import annotations

import itertools
import math
from dataclasses import dataclass, fields
from typing import Annotated, Any, Literal

from routesparse.engine.calibration.drift import Rate
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ConfigError
from routesparse.engine.method import policy
from routesparse.engine.method.predictor import LEAF, ErrorPredictor
from routesparse.engine.schema import (
    Count,
    FieldError,
    Number,
    Positive,
    Text,
    Whole,
    check_length,
    checked,
)

Residual = Annotated[float, Number(-1.0, 1.0)]
RoundedShare = Annotated[float, Number(0.0, 1.0 + 1e-6)]


@dataclass(frozen=True)
class Summary:
    """What a file says of one prompt, see calibrate.fit._summary."""

    fold: Literal["A", "B"]
    domain: Text
    document: Text
    sha256: Text
    tokens: Positive
    units: Count
    mean: Residual | None
    q95: Residual | None
    max: Residual | None
    density: RoundedShare


@dataclass(frozen=True)
class Document:
    """One document of a fold."""

    name: Text
    sha256: Text
    prompts: Count


@dataclass(frozen=True)
class Fold:
    """How many prompts a fold has, of which documents."""

    prompts: Count
    documents: tuple[Document, ...]


def check_deltas(value: dict[str, Any], prompts: int, field: str) -> None:
    """By level q: a difference of two masses, null for infinite, and never smaller at a higher q.

    Infinite is always allowed, being the more careful; finite needs q (K + 1)/K <= 1. K counts all domains of a
    robust calibration, whose delta needs as many prompts of each: this check is the weaker one.
    """
    known = {}
    for name, delta in value.items():
        try:
            level = float(name)
        except ValueError:
            level = math.nan
        if not 0 < level < 1 or f"{level:g}" != name:
            raise FieldError(f"{field}.{name}", delta, "named after a level q such as 0.95, between 0 and 1")
        if delta is not None and (prompts == 0 or level * (prompts + 1) / prompts > 1.0):
            raise FieldError(f"{field}.{name}", delta, f"null: {prompts} prompts are too few for this level")
        known[level] = math.inf if delta is None else delta
    levels = sorted(known)
    for lower, higher in itertools.pairwise(levels):
        if known[higher] < known[lower]:
            least = "null" if math.isinf(known[lower]) else f"at least {known[lower]}"
            raise FieldError(
                f"{field}.{higher:g}", known[higher], f"{least}, as at the lower level {lower:g}"
            )


def check_stamp(value: dict[str, Any], field: str) -> None:
    """Values that a RouterConfig or a constant may have. Missing and unknown ones are told when stamps are compared."""
    for name, constant in policy.constants().items():
        if name in value:
            checked(Count if isinstance(constant, int) else Rate, value[name], f"{field}.{name}")
    try:
        RouterConfig.from_dict({f.name: value[f.name] for f in fields(RouterConfig) if f.name in value})
    except ConfigError as error:
        raise ValueError(f"{field}.{error}") from None


def check_trees(found: ErrorPredictor, field: str) -> None:
    """Errors: FieldError for tables of different shapes, entries outside them, or leaves that depth does not reach."""
    trees, nodes = len(found.feature), len(found.feature[0])
    inside = Annotated[int, Whole(0, nodes - 1)]
    for name in ("feature", "threshold", "left", "right", "value"):
        table = getattr(found, name)
        check_length(table, trees, f"{field}.{name}")
        for place, row in enumerate(table):
            check_length(row, nodes, f"{field}.{name}[{place}]")
        if name in ("left", "right"):
            checked(tuple[tuple[inside, ...], ...], table, f"{field}.{name}")
    reached = set()
    for feature, left, right in zip(found.feature, found.left, found.right, strict=True):
        level, depth = {0}, 0
        # A path longer than the tree has nodes goes in a circle.
        while (inner := [n for n in level if feature[n] != LEAF]) and depth <= nodes:
            level, depth = {child for n in inner for child in (left[n], right[n])}, depth + 1
        reached.add(depth)
    if max(reached) != found.depth:
        raise FieldError(
            f"{field}.depth", found.depth, f"that of the deepest leaf ({max(reached)} by the tables)"
        )
