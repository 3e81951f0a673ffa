"""The picture of a sweep: error over the area that is read and over time, every setting a letter, the front a line."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.screens.sweep.settings import COSTS, Error
from routesparse.app.ui import design, numbers, plot
from routesparse.engine.stats.front import front

_LOG_FROM = 10.0  # times between the smallest and the largest error
_ROOM = 0.08  # of the axis, beside the outermost points
_PANEL_PX = (300, 276)  # of a window of 1024 pixels, the narrowest that is looked at
_LETTER_PX, _DOT_PX = (12, 13), 10
_TITLES = {"area": "share of the causal area read", "time": "prefill, ms"}
_HOVER = "{0} · {1}\n{2} {3}\nreads {4} of the causal area\nprefill {5}, dense {6}"


def on_front(rows: pd.DataFrame, error: Error) -> dict[str, np.ndarray]:
    """bool [settings] for each cost: which settings are on the front of this error and that cost."""
    return {cost: front(rows[column], rows[error.column]) for cost, column in COSTS.items()}


def accepted_line(rows: pd.DataFrame, error: Error, below: float | None) -> float | None:
    """Where the accepted error is drawn as a line: an error of 0 has no place on a logarithmic axis."""
    return below if below or not _is_log(rows[error.column]) else None


def _is_log(errors: pd.Series) -> bool:
    lowest, highest = float(errors.min()), float(errors.max())
    return lowest > 0 and highest / lowest > _LOG_FROM


def fronts(
    rows: pd.DataFrame, error: Error, below: float | None, named: str | None, theme: design.Theme
) -> dict[str, Any]:
    """rows: settings whose error was measured; below: the accepted error, None for no line; named: the letter of the
    setting that the page names, ringed."""
    errors = rows[error.column]
    lowest, highest = float(errors.min()), float(errors.max())
    log, below = _is_log(errors), accepted_line(rows, error, below)
    if below is not None:
        lowest, highest = min(lowest, below), max(highest, below)
    if log:
        air = (highest / lowest) ** _ROOM
        y = plot.logarithmic(error.label, lowest / air, highest * air)
    else:
        y = plot.linear(error.label, -_ROOM * (highest or 1.0), (highest or 1.0) * (1 + _ROOM))
    return plot.panels([_panel(rows, error, cost, y, (below, named), theme) for cost in COSTS])


def _panel(
    rows: pd.DataFrame,
    error: Error,
    cost: str,
    y: plot.Axis,
    chosen: tuple[float | None, str | None],
    theme: design.Theme,
) -> dict[str, Any]:
    """Error over one cost. chosen: ``below`` and ``named``."""
    below, named = chosen
    column = COSTS[cost]
    known = rows[rows[column].notna()]
    best = front(known[column], known[error.column])
    dense = [] if cost == "area" else rows["dense_ms"].dropna().to_list()
    middle = float(np.median(dense)) if dense else None
    ends = _ends([*known[column], *([] if middle is None else [middle])], cost)
    if cost != "area":
        y = replace(y, title="")  # beside the panel that says it
    x = plot.linear(
        _TITLES[cost] + (", not from 0" if ends[0] else ""), *ends, percent=cost == "area", most=4
    )
    line = known[best].sort_values([column, error.column])
    marks = [plot.line(*plot.steps(line[column], line[error.column]), theme.accent, 1.6)]
    if below is not None:
        marks.append(plot.line(x.range, [below] * 2, theme.warn, 1.3, "8 5"))
    if middle is not None:
        marks.append(plot.line([middle] * 2, y.range, theme.mute, 1.2, "1.5 3"))
        marks.append(plot.label(middle, y.range[1], "dense", theme.mute, "end", dy=-4))
    marks.append(
        plot.points(
            known[column],
            known[error.column],
            [theme.accent if one else theme.panel for one in best],
            _HOVER,
            [_told(row, error) for row in known.to_dict("records")],
            size=_DOT_PX,
            edge=[theme.ink if letter == named else theme.accent for letter in known["letter"]],
            edge_width=[3.0 if letter == named else 1.4 for letter in known["letter"]],
        )
    )
    return plot.chart(x, y, [*marks, *_letters(known, (column, error.column), (x, y), theme)], 340, theme, 22)


def _ends(costs: list[float], cost: str) -> tuple[float, float]:
    """Of the axis of a cost: areas from nothing, times as far as they and dense lie apart, since they often lie
    close together."""
    low, most = min(costs), max(costs)
    if cost == "area" or low == most:
        return 0.0, (most or 1.0) * (1 + _ROOM)
    air = _ROOM * (most - low)
    return low - air, most + air


def _letters(
    known: pd.DataFrame, columns: tuple[str, str], axes: tuple[plot.Axis, plot.Axis], theme: design.Theme
) -> list[plot.Mark]:
    """A letter beside every dot, none over another one. columns: of the panel's x and y."""
    x, y = (known[name].to_numpy(float) for name in columns)
    places = []
    for values, axis, size in zip((x, y), axes, _PANEL_PX, strict=True):
        low, high, at = (np.log10(one) if axis.log else np.asarray(one) for one in (*axis.range, values))
        places.append((at - low) / (high - low) * size)
    return [
        plot.label(at, height, letter, theme.ink, "middle", dy=4 - lift, strong=True)
        for letter, at, height, lift in zip(known["letter"], x, y, letter_lifts(*places), strict=True)
    ]


def letter_lifts(x: np.ndarray, y: np.ndarray) -> list[int]:
    """Pixels from each dot up to its letter (below it where negative): the nearest place that neither another letter
    nor another dot takes. x, y float [settings]: the dots, in pixels from the lower left corner of their panel."""
    wide, high = _LETTER_PX
    taken: list[tuple[float, float]] = []
    lifts = []
    for i in range(len(x)):
        dots = [(x[j], y[j]) for j in range(len(x)) if j != i]
        steps = [sign * high * step for step in range(1, len(x) + 2) for sign in (1, -1)]
        free = (
            lift
            for lift in steps
            if 0 <= y[i] + lift <= _PANEL_PX[1]
            and not any(abs(x[i] - u) < wide and abs(y[i] + lift - v) < high for u, v in taken)
            and not any(abs(x[i] - u) < _DOT_PX and abs(y[i] + lift - v) < _DOT_PX for u, v in dots)
        )
        lift = next(free, high)
        taken.append((x[i], y[i] + lift))
        lifts.append(lift)
    return lifts


def _told(row: dict[str, Any], error: Error) -> list[str]:
    return [
        row["letter"],
        row["setting"],
        error.name,
        error.text(row[error.column]),
        numbers.share(row["density"]),
        numbers.millis(row["total_ms"]),
        numbers.millis(row["dense_ms"]),
    ]
