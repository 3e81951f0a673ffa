"""Has this prompt left the range that a calibration has seen? A conformal p-value of its descriptors (section 3.5).

A conformal delta_q speaks for prompts like the calibration's. Whether a prompt is like them is asked of its probe
descriptors alone: per layer the mean over heads of entropy, local band and agreement. Each descriptor is taken
relative to a line in log2(tokens), and a prompt's distance is Mahalanobis' (1936), with the covariance shrunk
towards its diagonal. A calibration on several domains has one component each; the nearest one counts.

The reference distances are those of calibration prompts from a component fitted *without their document*: windows of
one book resemble each other, and a test prompt comes from another book. p = (1 + #{reference >= distance})/(K + 1); the
alarm goes off at p <= ALARM_LEVEL, so on about that share of prompts that are like the calibration's. numpy only.

The level was fixed before the test windows of data/results/coverage.json were drawn.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Annotated

import numpy as np

from routesparse.engine.rows import HeadChoiceRow
from routesparse.engine.schema import (
    FILLED,
    POSITIVE,
    FieldError,
    Number,
    Positive,
    Real,
    Text,
    ascending,
    check_length,
    check_tokens,
)

ALARM_LEVEL = 0.04
SHRINKAGE = 0.2  # share of the diagonal in the covariance
LEAST_SPREAD = 1e-3  # of a descriptor, so that a constant one does not divide by nothing
KINDS = ("entropy", "local_band", "agreement")
Rate = Annotated[float, Number(0.0)]
Part = Annotated[float, Number(POSITIVE, 1.0)]


@dataclass(frozen=True)
class Assessment:
    """distance in standard deviations; p: its conformal p-value; most: the descriptor that is farthest off."""

    distance: float
    p: float
    alarm: bool
    most: str


@dataclass(frozen=True)
class Component:
    """One domain's descriptors D at length n: expected intercept + slope log2(n), covariance's inverse [D, D]."""

    name: Text
    intercept: tuple[Real, ...]
    slope: tuple[Real, ...]
    spread: tuple[Annotated[float, Number(POSITIVE)], ...]  # standard deviation around the line
    precision: tuple[tuple[Real, ...], ...]

    def residual(self, values: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """values [..., D] minus the line at tokens [...]."""
        line = np.array(self.intercept) + np.array(self.slope) * np.log2(tokens)[..., None]
        return values - line

    def distance(self, values: np.ndarray, tokens: np.ndarray) -> np.ndarray:
        """Mahalanobis distance over sqrt(D): about 1 for a typical prompt. [..., D] -> [...]."""
        off = self.residual(values, tokens)
        square = np.einsum("...i,ij,...j->...", off, np.array(self.precision), off)
        return np.sqrt(np.maximum(square, 0.0) / off.shape[-1])


@dataclass(frozen=True)
class DriftReference:
    """What a calibration's prompts looked like."""

    descriptors: Annotated[tuple[Text, ...], FILLED]  # "entropy 0", ...: kind and layer
    components: Annotated[tuple[Component, ...], FILLED]
    distances: Annotated[tuple[Rate, ...], FILLED]  # reference distances of the calibration's prompts, sorted
    min_tokens: Positive
    max_tokens: Positive
    level: Part = ALARM_LEVEL

    def assess(self, values: np.ndarray, tokens: int) -> Assessment | None:
        """values [D] as ``describe_prompt`` gives them; None for a length or a model that was not calibrated."""
        if not self.min_tokens <= tokens <= self.max_tokens or len(values) != len(self.descriptors):
            return None
        length = np.array(float(tokens))
        found = [float(c.distance(values, length)) for c in self.components]
        nearest = self.components[int(np.argmin(found))]
        distance = min(found)
        above = len(self.distances) - int(np.searchsorted(np.array(self.distances), distance, side="left"))
        p = (1 + above) / (len(self.distances) + 1)
        off = np.abs(nearest.residual(values, length)) / np.array(nearest.spread)
        return Assessment(distance, p, p <= self.level, self.descriptors[int(np.argmax(off))])


def check_reference(found: DriftReference, field: str) -> None:
    """Errors: FieldError for lists that do not fit the descriptors, a precision that measures no distance, ..."""
    width = len(found.descriptors)
    if len(set(found.descriptors)) != width:
        raise FieldError(f"{field}.descriptors", found.descriptors, "without repetition")
    ascending(found.distances, f"{field}.distances", strictly=False)
    check_tokens(found, field)
    for place, part in enumerate(found.components):
        name = f"{field}.components[{place}]"
        for line in ("intercept", "slope", "spread", "precision"):
            check_length(getattr(part, line), width, f"{name}.{line}")
        for row, values in enumerate(part.precision):
            check_length(values, width, f"{name}.precision[{row}]")
        precision = np.array(part.precision, dtype=np.float64)
        scale = np.sqrt(np.diag(precision).clip(0.0))  # descriptors differ in size: compare correlations
        scaled = precision / np.outer(scale, scale) if scale.all() else np.zeros_like(precision)
        if not np.allclose(scaled, scaled.T) or np.linalg.eigvalsh(scaled).min() <= 0:
            raise FieldError(f"{name}.precision", part.precision, "symmetric and positive definite")


def describe_prompt(choices: Sequence[HeadChoiceRow]) -> tuple[tuple[str, ...], np.ndarray]:
    """Names and values [D] of one prompt's descriptors: per kind and layer the mean over heads and segments."""
    layers = sorted({c.layer for c in choices})
    place = np.array([layers.index(c.layer) for c in choices])
    count = np.bincount(place, minlength=len(layers))
    names, values = [], []
    for kind in KINDS:
        weights = np.array([getattr(c, kind) for c in choices])
        values.append(np.bincount(place, weights=weights, minlength=len(layers)) / count)
        names += [f"{kind} {layer}" for layer in layers]
    return tuple(names), np.concatenate(values)


def fit_component(name: str, values: np.ndarray, tokens: np.ndarray) -> Component:
    """values [K, D] of K prompts, tokens [K]."""
    design = np.stack([np.ones(len(tokens)), np.log2(tokens)], 1)
    if np.ptp(tokens) == 0:
        design[:, 1] = 0.0
    line, *_ = np.linalg.lstsq(design, values, rcond=None)
    off = values - design @ line
    spread = np.maximum(off.std(0, ddof=1), LEAST_SPREAD)
    correlation = (off / spread).T @ (off / spread) / (len(off) - 1)
    shrunk = (1 - SHRINKAGE) * correlation + SHRINKAGE * np.eye(len(spread))
    precision = np.linalg.inv(shrunk) / np.outer(spread, spread)
    return Component(
        name,
        tuple(map(float, line[0])),
        tuple(map(float, line[1])),
        tuple(map(float, spread)),
        tuple(tuple(map(float, row)) for row in precision),
    )


def fit_reference(
    names: Sequence[str],
    values: np.ndarray,
    tokens: np.ndarray,
    documents: Sequence[str],
    domains: Sequence[str],
    min_tokens: int,
    max_tokens: int,
) -> DriftReference | None:
    """K calibration prompts: values [K, D], tokens [K], and each one's document and domain (one component each).

    None where a domain has prompts of fewer than two documents: then nothing tells how far another one lies.
    """
    document, domain = np.asarray(documents), np.asarray(domains)
    parts = sorted(set(domains))
    if any(len(set(document[domain == part])) < 2 for part in parts):
        return None
    components = {part: fit_component(part, values[domain == part], tokens[domain == part]) for part in parts}
    reference = np.zeros(len(values))
    for held_out in sorted(set(documents)):
        mine = document == held_out
        found = []
        for part in parts:
            others = (domain == part) & ~mine
            same = len(others) and np.array_equal(others, domain == part)
            fitted = components[part] if same else fit_component(part, values[others], tokens[others])
            found.append(fitted.distance(values[mine], tokens[mine]))
        reference[mine] = np.min(found, axis=0)
    return DriftReference(
        descriptors=tuple(names),
        components=tuple(components[part] for part in parts),
        distances=tuple(sorted(map(float, reference))),
        min_tokens=min_tokens,
        max_tokens=max_tokens,
    )
