"""Paired comparison of methods whose settings trace curves of KL against area.

A curve's points are sorted by area; between two of them log KL is linear in log area. A KL that rises with the area
counts as the least KL at any smaller area. Resampled together: draw b takes the same prompts for every method, within
each task; column 0 of every array is the sample itself, the others are draws.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import NamedTuple

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
EQUAL = 1e-9  # logarithms that differ by less count as equal
Prompts = Mapping[str, np.ndarray]  # one number per prompt, by task


class Reached(NamedTuple):
    """Interpolated values [D], and where they are only bounds: -1 "at most", 1 "more than", 0 neither."""

    values: np.ndarray
    sides: np.ndarray


def draws(sizes: Mapping[str, int], seed: int = 0, resamples: int = RESAMPLES) -> dict[str, np.ndarray]:
    """Indices int64 [1 + resamples, n] by task."""
    rng = np.random.default_rng(seed)
    return {task: np.vstack([np.arange(n), rng.integers(0, n, (resamples, n))]) for task, n in sizes.items()}


def means(numbers: Prompts, drawn: Mapping[str, np.ndarray]) -> np.ndarray:
    """Mean over tasks of the means over prompts, one per draw: [D]."""
    return np.mean([values[drawn[task]].mean(1) for task, values in numbers.items()], axis=0)


def interval(values: np.ndarray) -> tuple[float, float]:
    """Percentile interval of the draws behind column 0."""
    low, high = np.quantile(values[1:], [(1 - LEVEL) / 2, (1 + LEVEL) / 2])
    return float(low), float(high)


def area_at(area: np.ndarray, kl: np.ndarray, goal: np.ndarray) -> Reached:
    """The area at which curves fall to a KL: area, kl [S, D], goal [D]."""
    x, y = _curve(area, kl)
    wanted, column = np.log(goal), np.arange(x.shape[1])
    below = y <= wanted + EQUAL
    after = np.where(below.any(0), below.argmax(0), len(y) - 1)
    before = np.maximum(after - 1, 0)
    fall = y[before, column] - y[after, column]
    part = np.where(fall > 0, (y[before, column] - wanted) / np.where(fall > 0, fall, 1.0), 1.0)
    value = x[before, column] + np.clip(part, 0, 1) * (x[after, column] - x[before, column])
    sides = np.where(~below.any(0), 1, np.where(y[0] < wanted - EQUAL, -1, 0))
    return Reached(np.exp(value), sides)


def kl_at(area: np.ndarray, kl: np.ndarray, goal: np.ndarray) -> Reached:
    """The KL of curves at an area: area, kl [S, D], goal [D]."""
    x, y = _curve(area, kl)
    wanted, column = np.log(goal), np.arange(x.shape[1])
    after = np.clip((x < wanted).sum(0), 0, len(x) - 1)
    before = np.maximum(after - 1, 0)
    width = x[after, column] - x[before, column]
    part = np.where(width > 0, (wanted - x[before, column]) / np.where(width > 0, width, 1.0), 1.0)
    value = y[before, column] + np.clip(part, 0, 1) * (y[after, column] - y[before, column])
    sides = np.where(wanted < x[0] - EQUAL, 1, np.where(wanted > x[-1] + EQUAL, -1, 0))
    return Reached(np.exp(value), sides)


def _curve(area: np.ndarray, kl: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log area ascending and log KL descending along each column."""
    order = area.argsort(axis=0, kind="stable")
    ordered = np.take_along_axis(kl, order, 0)
    return np.log(np.take_along_axis(area, order, 0)), np.log(np.minimum.accumulate(ordered, axis=0))
