"""Charts of an evaluation: loss over area, and each task's difference; points with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape
from itertools import pairwise

import plotly.graph_objects as go

from routesparse.app.ui import design
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


def loss_over_area(rows: Sequence[MethodRow], unit: str, picked: str, theme: design.Theme) -> go.Figure:
    """Every method with area and difference; filled: ours; the line: the front of the estimates."""
    known = [row for row in rows if row.area is not None and row.change is not None]
    best = on_front(known)
    line = sorted((row for row, one in zip(known, best, strict=True) if one), key=lambda row: row.area or 0)
    chart = go.Figure()
    chart.add_scatter(
        x=[row.area for row in line],
        y=[_change(row).value for row in line],
        mode="lines",
        line={"color": theme.accent, "width": 1.6},
        hoverinfo="skip",
    )
    low, high = loss_ends(known)
    least = min((row.area or 1.0 for row in known), default=0.1)
    left, right = math.log10(least * 0.85), math.log10(1.25)

    def spot(row: MethodRow, value: float) -> tuple[float, float]:
        return (math.log10(row.area or 1.0) - left) / (right - left), (value - low) / (high - low)

    drawn = [row for row in known if low <= _change(row).value <= high]
    order = sorted(drawn, key=lambda row: (row.name != picked, row not in line))
    strokes = [(spot(row, _change(row).low), spot(row, _change(row).high)) for row in drawn]
    strokes += pairwise(spot(row, _change(row).value) for row in line)
    places = label_places([(*spot(row, _change(row).value), row.name) for row in order], strokes)
    sides = dict(zip((row.name for row in order), places, strict=True))
    for ours in (False, True):
        part = [row for row in known if row.method.startswith("routesparse") == ours]
        chart.add_scatter(
            x=[row.area for row in part],
            y=[_change(row).value for row in part],
            error_y=_bars([_change(row) for row in part], theme),
            mode="markers+text",
            marker={
                "size": [15 if row.name == picked else 10 for row in part],
                "symbol": "circle" if ours else "diamond-open",
                "color": theme.accent if ours else theme.ink,
                "line": {"width": 1.4, "color": theme.accent if ours else theme.ink},
            },
            text=[escape(row.name) if sides.get(row.name) else "" for row in part],
            textposition=[sides.get(row.name) or "top right" for row in part],
            textfont={"color": theme.ink, "size": 11},
            customdata=[
                f"<b>{escape(row.name)}</b><br>{wording.change(row)} {unit}"
                f"<br>reads {100 * (row.area or 0):.1f} % of the area<br>n = {wording.prompts(row)}"
                for row in part
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    chart.update_xaxes(
        type="log",
        title={"text": "share of the causal area read"},
        range=[left, right],
        tickvals=_TICKS,
        ticktext=[f"{100 * tick:g} %" for tick in _TICKS],
        fixedrange=True,
    )
    chart.update_yaxes(
        title={"text": f"against dense, {unit}", "standoff": 6},
        range=[low, high],
        fixedrange=True,
        automargin=True,
    )
    return _laid_out(chart, theme, 380)


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


def by_task(row: MethodRow, theme: design.Theme) -> go.Figure:
    """One method's difference in every task; hollow where dense scores below 80, which says nothing about sparse."""
    tasks = list(reversed(row.tasks))
    good = [one.dense >= wording.GOOD for one in tasks]
    chart = go.Figure()
    chart.add_scatter(
        x=[one.difference.value for one in tasks],
        y=[f"{escape(one.task)} ({one.dense:.0f})" for one in tasks],
        error_x=_bars([one.difference for one in tasks], theme),
        mode="markers",
        marker={
            "size": 10,
            "symbol": ["circle" if one else "circle-open" for one in good],
            "color": [theme.accent if one else theme.mute for one in good],
        },
        customdata=[
            f"<b>{escape(one.task)}</b><br>{wording.task_change(one)}<br>score {one.score:.1f}, dense {one.dense:.1f}"
            for one in tasks
        ],
        hovertemplate="%{customdata}<extra></extra>",
        cliponaxis=False,
    )
    chart.add_vline(x=0, line={"color": theme.mute, "width": 1.2, "dash": "dot"})
    lowest = min((one.difference.low for one in tasks), default=0.0)
    highest = max((one.difference.high for one in tasks), default=0.0)
    pad = 0.06 * max(highest - lowest, 1.0)
    chart.update_xaxes(
        title={"text": f"{escape(row.name)} against dense, points"},
        range=[min(lowest, -1) - pad, max(highest, 1) + pad],
        fixedrange=True,
    )
    chart.update_yaxes(automargin=True, fixedrange=True)
    return _laid_out(chart, theme, 90 + 26 * len(tasks))


def _change(row: MethodRow) -> Estimate:
    change = row.change
    assert change is not None
    return change


def _bars(found: Sequence[Estimate], theme: design.Theme) -> dict[str, object]:
    return {
        "type": "data",
        "symmetric": False,
        "array": [one.high - one.value for one in found],
        "arrayminus": [one.value - one.low for one in found],
        "color": theme.mute,
        "thickness": 1.2,
        "width": 3,
    }


def _laid_out(chart: go.Figure, theme: design.Theme, height: int) -> go.Figure:
    chart.update_layout(
        template=design.template(theme),
        height=height,
        showlegend=False,
        hovermode="closest",
        dragmode=False,
        margin={"l": 64, "r": 12, "t": 12, "b": 42},
    )
    return chart
