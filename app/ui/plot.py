"""Bars, points, lines and a picture of cells on two axes, with a hover: charts that are read, not explored.

plot.js draws them: Plotly took longer to load than all else on a page.
A chart is what ``chart`` makes of two axes and marks. The words of a mark's items are a template, said once, and the
values that go into it: ``hover`` "layer {0}" with ``told`` [[3], [5]].
"""

from __future__ import annotations

import base64
import math
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import streamlit as st

from routesparse.app.ui import browser_part, design

_plot = browser_part.component(__file__, "plot")

Told = Sequence[Sequence[object]]
Mark = dict[str, Any]

_LEAST = 1e-9  # of a logarithmic axis
_MOST = 1e300  # what a store may hold can be larger than any axis


@dataclass(frozen=True)
class Axis:
    """From ``range[0]`` (left, bottom) to ``range[1]``; ticks are (value, text), those without room are left out."""

    title: str
    range: tuple[float, float]
    ticks: list[tuple[float, str]]
    log: bool = False
    grid: bool = True


def linear(
    title: str, low: float, high: float, percent: bool = False, most: int = 6, least_step: float = 0.0
) -> Axis:
    """Ticks at 1, 2 or 5 times a power of ten, at most ``most`` and a bit, with the digits that keep them apart."""
    low, high = max(low, -_MOST), min(high, _MOST)
    raw = max((high - low) / most, least_step)
    power = 10.0 ** math.floor(math.log10(raw))
    step = next(first * power for first in (1, 2, 5, 10) if first * power >= raw * (1 - 1e-9))
    digits = max(0, -math.floor(math.log10(step) + 1e-9) - (2 if percent else 0))
    values = [i * step for i in range(math.ceil(low / step), math.floor(high / step + 1e-9) + 1)]
    told = [f"{100 * value:.{digits}f} %" if percent else f"{value:,.{digits}f}" for value in values]
    return Axis(title, (low, high), list(zip(values, told, strict=True)))


def around(title: str, values: Sequence[float], most: int = 4) -> Axis:
    """A linear axis over values with a little air at both ends; what is not finite has no place on it."""
    known = [value for value in map(float, values) if math.isfinite(value)]
    low, high = min(known, default=0.0), max(known, default=1.0)
    room = 0.06 * ((high - low) or abs(high) or 1.0)
    return linear(title, low - room, high + room, most=most)


def logarithmic(title: str, low: float, high: float) -> Axis:
    """Ticks at 1, 2 and 5 of every decade; what lies at 0 or below has no place on such an axis."""
    low = max(low, _LEAST)
    high = max(min(high, _MOST), low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{first}e{decade}") for decade in decades for first in (1, 2, 5)]
    return Axis(title, (low, high), [(tick, f"{tick:,g}") for tick in ticks if low <= tick <= high], log=True)


def chart(
    x: Axis, y: Axis, marks: Sequence[Mark], height: int, theme: design.Theme, top: int = 8
) -> dict[str, Any]:
    """What plot.js draws, the marks in this order; ``top``: pixels above the area, for labels."""
    colors = {name: getattr(theme, name) for name in ("ink", "mute", "line", "panel", "accent")}
    return {
        "x": asdict(x),
        "y": asdict(y),
        "marks": list(marks),
        "height": height,
        "top": top,
        "font": design.FONT,
        **colors,
    }


def panels(charts: Sequence[dict[str, Any]]) -> dict[str, Any]:
    """Charts of one height as one, beside each other."""
    marks = [{**mark, "panel": place} for place, one in enumerate(charts) for mark in one["marks"]]
    others = [{"x": one["x"], "y": one["y"]} for one in charts[1:]]
    return {**charts[0], "marks": marks, "others": others}


def bars(at: Sequence[Sequence[float]], color: str | list[str], hover: str, told: Told) -> Mark:
    """at: (left, right, bottom, top) of each."""
    look = {"color": color, "hover": hover, "told": told}
    return {"kind": "bars", **_placed({"at": [short(place) for place in at], **look}, at)}


def points(
    x: Sequence[float],
    y: Sequence[float],
    color: str | list[str],
    hover: str,
    told: Told,
    symbol: str = "circle",
    size: float | list[float] = 8,
    **look: Any,
) -> Mark:
    """Marks of ``size`` pixels; an empty hover tells nothing.

    symbol: "circle", "square", "diamond", "triangle-up" or "hexagon".

    look: ``edge`` and ``edge_width`` of the outline, one for all or a list; ``opacity``; ``letters`` in the marks and
    their colours ``inks``.
    """
    place = {"x": short(x), "y": short(y), "symbol": symbol, "size": size}
    mark = {**place, "color": color, "hover": hover, "told": told, **look}
    return {"kind": "points", **_placed(mark, list(zip(x, y, strict=True)))}


def _placed(mark: Mark, places: Sequence[Sequence[float]]) -> Mark:
    """The mark without the items that have no finite place: a browser reads neither NaN nor infinity."""
    kept = [i for i, place in enumerate(places) if all(map(math.isfinite, place))]
    if len(kept) == len(places):
        return mark
    parted = {name: values for name, values in mark.items() if isinstance(values, list | tuple) and values}
    return {**mark, **{name: [values[i] for i in kept] for name, values in parted.items()}}


def line(
    x: Sequence[float], y: Sequence[float], color: str, width: float = 1.3, dash: str = "", ring: bool = False
) -> Mark:
    """dash: SVG's, such as "5 4"; ring: a mark of what is picked, which saved pictures leave out."""
    look = {"color": color, "width": width, "dash": dash, "ring": ring}
    return {"kind": "line", **_placed({"x": short(x), "y": short(y), **look}, list(zip(x, y, strict=True)))}


def steps(x: Sequence[float], y: Sequence[float]) -> tuple[list[float], list[float]]:
    """Places of a line that keeps each y up to the next x."""
    return np.repeat(x, 2)[1:].tolist(), np.repeat(y, 2)[:-1].tolist()


def whiskers(at: Sequence[Sequence[float]], color: str) -> Mark:
    """at: (x, y) of one end and of the other, upright or level; a cap at both."""
    return {"kind": "whiskers", **_placed({"at": [short(place) for place in at], "color": color}, at)}


def label(
    x: float,
    y: float,
    text: str,
    color: str,
    anchor: str = "start",
    dx: int = 0,
    dy: int = 0,
    strong: bool = False,
) -> Mark:
    """A text at a place of the axes; dx, dy: pixels from it."""
    place = {"x": x, "y": y, "dx": dx, "dy": dy, "anchor": anchor}
    return {"kind": "label", **place, "text": text, "color": color, "strong": strong}


def beside(
    points: Sequence[tuple[float, float, str]],
    color: str,
    lines: Sequence[Sequence[tuple[float, float]]] = (),
    strong: bool = False,
) -> Mark:
    """A name (x, y, name) for each point that has room, those named first choose first. lines: what is drawn between
    places of the axes, which names avoid."""
    x, y, names = zip(*points, strict=True) if points else ((), (), ())
    strokes = [[short(place) for place in line] for line in lines]
    return {
        "kind": "names",
        **_placed({"x": short(x), "y": short(y), "texts": names}, list(zip(x, y, strict=True))),
        "color": color,
        "lines": strokes,
        "strong": strong,
    }


def cells(
    values: np.ndarray, box: tuple[float, float, float, float], colors: list[str], hover: str, rows: list[str]
) -> Mark:
    """A picture of values of at least 0, [rows, columns], in ``box`` (left, right, first row's edge, last row's edge).

    colors: 256 of the square root of the share of the peak, so that faint cells show. hover: {0} is the row's name of
    ``rows``, {1} the middle of the cell on the x axis, {2} its value.
    """
    values = np.nan_to_num(values, nan=0.0, posinf=0.0, neginf=0.0)
    peak = float(values.max(initial=0)) or 1.0
    shares = np.rint(np.clip(values, 0, None) / peak * 65_535).astype("<u2")
    return {**_layer(shares, box, colors), "kind": "cells", "peak": peak, "hover": hover, "rows": rows}


def cover(
    numbers: np.ndarray, box: tuple[float, float, float, float], colors: list[str], names: list[str]
) -> Mark:
    """A picture to lie over another one of as many rows: numbers [rows, columns] of ``colors``, #rrggbb or #rrggbbaa.

    names: what the hover adds for each number, the last one also for all above.
    """
    return {**_layer(numbers.astype(np.uint8), box, colors), "kind": "cover", "names": names}


def _layer(values: np.ndarray, box: tuple[float, float, float, float], colors: list[str]) -> Mark:
    data = base64.b64encode(np.ascontiguousarray(values).tobytes()).decode()
    return {"shape": list(values.shape), "data": data, "box": list(box), "colors": colors}


def short(values: Sequence[float]) -> list[float]:
    """Six digits, more than a screen shows: a float's own seventeen outweigh the chart."""
    return [float(f"{value:.6g}") for value in values]


def show(
    drawn: dict[str, Any],
    key: str,
    name: str,
    picks: bool = False,
    on_row: Callable[[object], None] | None = None,
    on_window: Callable[[Any], None] | None = None,
) -> Sequence[object] | None:
    """Draw it; what was told of the point whose click or Enter caused this rerun, where ``picks`` allows one.

    name: what screen readers call it. on_row: gets the row of a picture that is clicked. on_window: gets the box that
    is dragged over a picture, [x0, x1, y0, y1], or [] after a double click. Both are what a browser sent, unchecked.
    """

    def act(name: str, on_change: Callable[[Any], None] | None) -> Callable[[], None]:
        return lambda: None if on_change is None else on_change(st.session_state[key][name])

    found = _plot(
        key=key,
        data={**drawn, "key": key, "label": name, "picks": picks, "zooms": on_window is not None},
        on_picked_change=lambda: None,
        on_row_change=act("row", on_row),
        on_window_change=act("window", on_window),
    )
    return picked_of(drawn["marks"], found.picked)


def picked_of(marks: Sequence[Mark], picked: object) -> Sequence[object] | None:
    """picked: [mark, item] as a browser sent it."""
    if (
        not isinstance(picked, list)
        or len(picked) != 2
        or not all(isinstance(place, int) for place in picked)
    ):
        return None
    mark, item = picked
    told = marks[mark].get("told", []) if 0 <= mark < len(marks) else []
    return told[item] if 0 <= item < len(told) else None
