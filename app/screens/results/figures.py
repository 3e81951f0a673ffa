"""Charts of an evaluation: loss over area, and each task's difference; points with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

from routesparse.app.ui import design, plot
from routesparse.engine.results import wording
from routesparse.engine.results.evaluations import Estimate, MethodRow
from routesparse.engine.results.tables import loss_ends, on_front

_NARROW, _PLOT_HEIGHT = 640.0, 326.0  # pixels of the chart's inside in the narrowest window
_LETTER = 6.0  # pixels of a letter, about
_Spot = tuple[float, float]
_SIDES = (
    *("top right", "bottom right", "top left", "bottom left", "middle right", "middle left"),
    *("top center", "bottom center"),
)
_TICKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)


def placed(rows: Sequence[MethodRow]) -> list[MethodRow]:
    """Those with a place on the axes of ``loss_over_area``: a difference, and an area that has a logarithm."""
    return [row for row in rows if row.area and row.change is not None]


def loss_over_area(rows: Sequence[MethodRow], unit: str, picked: str, theme: design.Theme) -> dict[str, Any]:
    """Every method with area and difference; filled: ours; the line: the front of the estimates."""
    known = placed(rows)
    best = on_front(known)
    line = sorted((row for row, one in zip(known, best, strict=True) if one), key=_area)
    low, high = loss_ends(known)
    least = min(map(_area, known), default=0.1)
    ticks = [(tick, f"{100 * tick:g} %") for tick in _TICKS if tick > least * 0.85]
    x = plot.Axis("share of the causal area read", (least * 0.85, 1.25), ticks, log=True)
    left, right = map(math.log10, x.range)

    def spot(row: MethodRow, value: float) -> tuple[float, float]:
        return (math.log10(_area(row)) - left) / (right - left), (value - low) / (high - low)

    drawn = [row for row in known if low <= _change(row).value <= high]
    order = sorted(drawn, key=lambda row: (row.name != picked, row not in line))
    strokes = [(spot(row, _change(row).low), spot(row, _change(row).high)) for row in drawn]
    strokes += pairwise(spot(row, _change(row).value) for row in line)
    places = label_places([(*spot(row, _change(row).value), row.name) for row in order], strokes)
    ends = [[_area(row), _change(row).low, _area(row), _change(row).high] for row in drawn]
    marks = [
        plot.line([_area(row) for row in line], [_change(row).value for row in line], theme.accent, 1.6),
        plot.whiskers(ends, theme.mute),
    ]
    for ours in (False, True):
        part = [row for row in drawn if row.method.startswith("routesparse") == ours]
        marks.append(
            plot.points(
                [_area(row) for row in part],
                [_change(row).value for row in part],
                theme.accent if ours else theme.panel,
                "{0}\n{1} {2}\nreads {3} of the area\nn = {4}",
                [
                    [row.name, wording.change(row), unit, f"{100 * _area(row):.1f} %", wording.prompts(row)]
                    for row in part
                ],
                "circle" if ours else "diamond",
                [15 if row.name == picked else 10 for row in part],
                edge=theme.accent if ours else theme.ink,
                edge_width=1.4,
            )
        )
    for row, side in zip(order, places, strict=True):
        if side:
            marks.append(_name(row, side, theme))
    return plot.chart(x, plot.linear(f"against dense, {unit}", low, high, most=8), marks, 380, theme)


def _name(row: MethodRow, side: str, theme: design.Theme) -> plot.Mark:
    """A point's name on one of its sides, where ``_box`` has it."""
    upright, level = side.split()
    anchor, dx = {"right": ("start", 6), "left": ("end", -6), "center": ("middle", 0)}[level]
    dy = {"top": -7, "middle": 4, "bottom": 15}[upright]
    return plot.label(_area(row), _change(row).value, row.name, theme.ink, anchor, dx, dy)


def label_places(
    points: Sequence[tuple[float, float, str]], strokes: Sequence[tuple[_Spot, _Spot]] = ()
) -> list[str | None]:
    """Where each point's name stands, so that no two names meet and, where there is room, no stroke cuts one; None
    where names would meet.

    points: x and y as shares of the plot, and the name; the first ones choose first. strokes: from one spot to another.
    """
    inked = [place for one, other in strokes for place in _along(one, other)]
    spots = [(x * _NARROW, y * _PLOT_HEIGHT) for x, y, _ in points]
    taken: list[tuple[float, float, float, float]] = []
    places: list[str | None] = []
    for (x, y), (_, _, name) in zip(spots, points, strict=True):
        free: list[tuple[int, str, tuple[float, float, float, float]]] = []
        for side in _SIDES:
            box = _box(x, y, len(name) * _LETTER, side)
            inside = box[0] >= 0 and box[1] <= _NARROW and box[2] >= 0 and box[3] <= _PLOT_HEIGHT
            clear = not any(_meet(box, (a - 5, a + 5, b - 5, b + 5)) for a, b in spots if (a, b) != (x, y))
            if inside and clear and not any(_meet(box, other) for other in taken):
                free.append((sum(_meet(box, (a, a, b, b)) for a, b in inked), side, box))
        # The first of those that the fewest strokes cut.
        best = min(free, key=lambda one: one[0], default=None)
        places.append(None if best is None else best[1])
        taken += [] if best is None else [best[2]]
    return places


def _along(one: _Spot, other: _Spot) -> list[_Spot]:
    """Pixels of a stroke, near enough to one another that no name slips between."""
    (x0, y0), (x1, y1) = ((x * _NARROW, y * _PLOT_HEIGHT) for x, y in (one, other))
    steps = 1 + int(max(abs(x1 - x0), abs(y1 - y0)) / 4)
    return [(x0 + (x1 - x0) * i / steps, y0 + (y1 - y0) * i / steps) for i in range(steps + 1)]


def _box(x: float, y: float, wide: float, side: str) -> tuple[float, float, float, float]:
    """Left, right, bottom and top of a name of this width on this side of a point, in pixels."""
    bottom = {"top": y + 4, "middle": y - 7, "bottom": y - 18}[side.split()[0]]
    left = {"right": x + 6, "left": x - 6 - wide, "center": x - wide / 2}[side.split()[1]]
    return left, left + wide, bottom, bottom + 14


def _meet(one: tuple[float, float, float, float], other: tuple[float, float, float, float]) -> bool:
    return one[0] < other[1] and other[0] < one[1] and one[2] < other[3] and other[2] < one[3]


def by_task(row: MethodRow, theme: design.Theme) -> dict[str, Any]:
    """One method's difference in every task; hollow where dense scores below 80, which says nothing about sparse."""
    tasks = row.tasks
    ends = [[one.difference.low, place, one.difference.high, place] for place, one in enumerate(tasks)]
    lowest, highest = min([-1.0, *(end[0] for end in ends)]), max([1.0, *(end[2] for end in ends)])
    pad = 0.06 * (highest - lowest)
    good = [one.dense >= wording.GOOD for one in tasks]
    rows = (len(tasks) - 0.5, -0.5)
    marks = [
        plot.line([0, 0], rows, theme.mute, 1.2, "1.5 3"),
        plot.whiskers(ends, theme.mute),
        plot.points(
            [one.difference.value for one in tasks],
            range(len(tasks)),
            [theme.accent if one else theme.panel for one in good],
            "{0}\n{1}\nscore {2}, dense {3}",
            [[one.task, wording.task_change(one), f"{one.score:.1f}", f"{one.dense:.1f}"] for one in tasks],
            size=10,
            edge=[theme.accent if one else theme.mute for one in good],
            edge_width=1.4,
        ),
    ]
    x = plot.linear(f"{row.name} against dense, points", lowest - pad, highest + pad, most=10)
    y = plot.Axis("", rows, [(place, f"{one.task} ({one.dense:.0f})") for place, one in enumerate(tasks)])
    return plot.chart(x, y, marks, 80 + 28 * len(tasks), theme)


def _area(row: MethodRow) -> float:
    assert row.area is not None
    return row.area


def _change(row: MethodRow) -> Estimate:
    change = row.change
    assert change is not None
    return change
