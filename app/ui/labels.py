"""Names beside the points of a chart, each where it covers no other name, no other point and, if it can, no line."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise

from routesparse.app.ui import plot

_LETTER, _HIGH, _NEAR = (
    6.0,
    14.0,
    6.0,
)  # pixels of a letter's width, of a name's height, from a point to its name
# A side of a point: where the name is anchored, and its offset in pixels, right and up.
_SIDES = {
    (level, upright): (anchor, dx, dy)
    for upright, dy in (("top", 7), ("bottom", -15), ("middle", -4))
    for level, anchor, dx in (("right", "start", _NEAR), ("left", "end", -_NEAR), ("center", "middle", 0))
    if (level, upright) != ("center", "middle")
}
Spot = tuple[float, float]
Box = tuple[float, float, float, float]


def beside(
    points: Sequence[tuple[float, float, str]],
    axes: tuple[plot.Axis, plot.Axis],
    size: Spot,
    color: str,
    lines: Sequence[Sequence[Spot]] = (),
    strong: bool = False,
) -> list[plot.Mark]:
    """A label for each point that has room, those named first choose first.

    points: x, y and name; size: of the chart's inside in the narrowest window, pixels; lines: what is drawn between
    places of the axes.
    """

    def pixels(x: float, y: float) -> Spot:
        return _part(axes[0], x) * size[0], _part(axes[1], y) * size[1]

    spots = [pixels(x, y) for x, y, _ in points]
    inked = [
        spot
        for line in lines
        for one, other in pairwise(line)
        for spot in _along(pixels(*one), pixels(*other))
    ]
    taken: list[Box] = []
    marks = []
    for place, ((x, y, name), spot) in enumerate(zip(points, spots, strict=True)):
        others = [other for at, other in enumerate(spots) if at != place]
        free = []
        for side in _SIDES.values():
            box = _box(spot, len(name) * _LETTER, side)
            inside = box[0] >= 0 and box[1] <= size[0] and box[2] >= 0 and box[3] <= size[1]
            if (
                inside
                and not any(_holds(box, other, 5) for other in others)
                and not any(_meet(box, b) for b in taken)
            ):
                free.append((sum(_holds(box, one) for one in inked), side, box))
        if free:
            _, (anchor, dx, dy), box = min(
                free, key=lambda one: one[0]
            )  # the first of those that least is drawn over
            taken.append(box)
            marks.append(plot.label(x, y, name, color, anchor, int(dx), -int(dy), strong))
    return marks


def _part(axis: plot.Axis, value: float) -> float:
    """Of the axis, how much lies before a value."""
    low, high, at = (math.log10(one) if axis.log else one for one in (*axis.range, value))
    return (at - low) / (high - low)


def _box(spot: Spot, wide: float, side: tuple[str, float, float]) -> Box:
    """Left, right, bottom and top of a name on this side of a spot, pixels."""
    anchor, dx, dy = side
    left = spot[0] + dx - {"start": 0.0, "middle": wide / 2, "end": wide}[anchor]
    return left, left + wide, spot[1] + dy - 3, spot[1] + dy - 3 + _HIGH


def _holds(box: Box, spot: Spot, near: float = 0.0) -> bool:
    return box[0] - near < spot[0] < box[1] + near and box[2] - near < spot[1] < box[3] + near


def _meet(one: Box, other: Box) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def _along(one: Spot, other: Spot) -> list[Spot]:
    """Places of a stroke, near enough to each other that no name slips between."""
    steps = 1 + int(math.dist(one, other) / 4)
    return [tuple(a + (b - a) * i / steps for a, b in zip(one, other, strict=True)) for i in range(steps + 1)]  # type: ignore[misc]
