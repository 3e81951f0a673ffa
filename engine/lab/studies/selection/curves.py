"""Curves of KL against area that a method's settings trace, and what they reach at equal KL or area.

A curve's points are sorted by area; between two of them log KL is linear in log area. A KL that rises with the area
counts as the least KL at any smaller area. Columns of every array are draws of ``stats/paired.py``, the same for all
methods; column 0 is the sample itself.
"""

from __future__ import annotations

from typing import NamedTuple

import numpy as np

EQUAL = 1e-9  # logarithms that differ by less count as equal


class Reached(NamedTuple):
    """Interpolated values [D], and where they are only bounds: -1 "at most", 1 "more than", 0 neither."""

    values: np.ndarray
    sides: np.ndarray


def area_at(area: np.ndarray, kl: np.ndarray, goal: np.ndarray) -> Reached:
    """The area at which curves fall to a KL: area, kl [S, D], goal [D]."""
    x, y = _curve(area, kl)
    wanted = np.log(goal)
    below = y <= wanted + EQUAL
    after = np.where(below.any(0), below.argmax(0), len(y) - 1)
    sides = np.where(~below.any(0), 1, np.where(y[0] < wanted - EQUAL, -1, 0))
    return Reached(_between(-y, x, -wanted, after), sides)


def kl_at(area: np.ndarray, kl: np.ndarray, goal: np.ndarray) -> Reached:
    """The KL of curves at an area: area, kl [S, D], goal [D]."""
    x, y = _curve(area, kl)
    wanted = np.log(goal)
    after = np.clip((x < wanted).sum(0), 0, len(x) - 1)
    sides = np.where(wanted < x[0] - EQUAL, 1, np.where(wanted > x[-1] + EQUAL, -1, 0))
    return Reached(_between(x, y, wanted, after), sides)


def _between(x: np.ndarray, y: np.ndarray, wanted: np.ndarray, after: np.ndarray) -> np.ndarray:
    """exp of y where ascending x is wanted, between the points after and before."""
    column, before = np.arange(x.shape[1]), np.maximum(after - 1, 0)
    width = x[after, column] - x[before, column]
    part = np.where(width > 0, (wanted - x[before, column]) / np.where(width > 0, width, 1.0), 1.0)
    return np.asarray(
        np.exp(y[before, column] + np.clip(part, 0, 1) * (y[after, column] - y[before, column]))
    )


def _curve(area: np.ndarray, kl: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """log area ascending and log KL descending along each column."""
    order = area.argsort(axis=0, kind="stable")
    ordered = np.take_along_axis(kl, order, 0)
    return np.log(np.take_along_axis(area, order, 0)), np.log(np.minimum.accumulate(ordered, axis=0))
