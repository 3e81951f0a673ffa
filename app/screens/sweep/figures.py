"""The picture of a sweep: error over the area that is read and over time, every setting a letter, the front a line."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app.screens.sweep.settings import COSTS, Error
from routesparse.app.ui import design, numbers
from routesparse.engine.stats.front import front

_LOG_FROM = 10.0  # times between the smallest and the largest error
_ROOM = 0.08  # of the axis, beside the outermost points
_PANELS = {"area": ("x", [0.0, 0.465]), "time": ("x2", [0.535, 1.0])}
_PANEL_PX = (300, 276)  # of a window of 1024 pixels, the narrowest that is looked at
_LETTER_PX, _DOT_PX = (12, 13), 10
_TITLES = {"area": "share of the causal area read", "time": "prefill, ms"}


def on_front(rows: pd.DataFrame, error: Error) -> dict[str, np.ndarray]:
    """bool [settings] for each cost: which settings are on the front of this error and that cost."""
    return {cost: front(rows[column], rows[error.column]) for cost, column in COSTS.items()}


def fronts(
    rows: pd.DataFrame, error: Error, below: float | None, named: str | None, theme: design.Theme
) -> go.Figure:
    """rows: settings whose error was measured; below: the accepted error, None for no line; named: the letter of the
    setting that the page names, ringed."""
    chart = go.Figure()
    errors = rows[error.column]
    lowest, highest = float(errors.min()), float(errors.max())
    log = lowest > 0 and highest / lowest > _LOG_FROM
    for cost, (axis, _) in _PANELS.items():
        column = COSTS[cost]
        known = rows[rows[column].notna()]
        best = front(known[column], known[error.column])
        line = known[best].sort_values([column, error.column])
        chart.add_scatter(
            x=line[column],
            y=line[error.column],
            xaxis=axis,
            mode="lines",
            line={"color": theme.accent, "width": 1.6, "shape": "hv"},
            hoverinfo="skip",
        )
        chart.add_scatter(
            x=known[column],
            y=known[error.column],
            xaxis=axis,
            mode="markers",
            marker={
                "size": _DOT_PX,
                "color": [theme.accent if one else theme.panel for one in best],
                "line": {
                    "color": [
                        theme.ink if row.letter == named else theme.accent for row in known.itertuples()
                    ],
                    "width": [3.0 if row.letter == named else 1.4 for row in known.itertuples()],
                },
            },
            customdata=[_hover(row, error) for row in known.to_dict("records")],
            hovertemplate="%{customdata}<extra></extra>",
        )
    dense = rows["dense_ms"].dropna()
    if len(dense):
        middle = float(dense.median())
        chart.add_vline(x=middle, line={"color": theme.mute, "width": 1.2, "dash": "dot"}, row=None, col=None)
        chart.layout.shapes[-1].update(xref="x2")
        chart.add_annotation(
            x=middle, y=1, xref="x2", yref="paper", text="dense", showarrow=False, xanchor="right", yanchor="bottom",
            font={"color": theme.mute, "size": 11},
        )  # fmt: skip
    if below is not None and (below > 0 or not log):
        for axis, _ in _PANELS.values():
            chart.add_shape(
                type="line",
                xref=f"{axis} domain",
                x0=0,
                x1=1,
                y0=below,
                y1=below,
                line={"color": theme.warn, "width": 1.3, "dash": "dash"},
            )
        lowest, highest = min(lowest, below), max(highest, below)
    _axes(chart, rows, error, (lowest, highest), log)
    for cost, (axis, _) in _PANELS.items():
        _letter(chart, rows[rows[COSTS[cost]].notna()], (COSTS[cost], error.column), axis, log, theme)
    chart.update_layout(
        template=design.template(theme),
        height=340,
        showlegend=False,
        hovermode="closest",
        dragmode=False,
        margin={"l": 64, "r": 10, "t": 22, "b": 42},
    )
    return chart


def _axes(chart: go.Figure, rows: pd.DataFrame, error: Error, ends: tuple[float, float], log: bool) -> None:
    for cost, (axis, domain) in _PANELS.items():
        values = rows[COSTS[cost]].dropna()
        if cost == "time":
            values = pd.concat([values, pd.Series([float(rows["dense_ms"].median())]).dropna()])
        most = float(values.max()) if len(values) else 1.0
        settings: dict[str, Any] = {"tickformat": ".0%"} if cost == "area" else {"tickformat": ",~g"}
        chart.layout[f"{axis[0]}axis{axis[1:]}"] = {
            "domain": domain,
            "title": {"text": _TITLES[cost]},
            "range": [0, most * (1 + _ROOM)],
            "fixedrange": True,
            "anchor": "y",
            **settings,
        }
    low, high = ends
    if log:
        pad = _ROOM * np.log10(high / low)
        limits = [np.log10(low) - pad, np.log10(high) + pad]
        chart.update_yaxes(type="log", range=limits, **design.log_ticks(low, high))
    else:
        chart.update_yaxes(range=[-_ROOM * (high or 1.0), (high or 1.0) * (1 + _ROOM)])
    chart.update_yaxes(title={"text": error.label, "standoff": 6}, fixedrange=True, automargin=True)


def _letter(
    chart: go.Figure, known: pd.DataFrame, columns: tuple[str, str], axis: str, log: bool, theme: design.Theme
) -> None:
    """A letter beside every dot, none over another one. columns: of the panel's x and y."""
    x, y = (known[name].to_numpy(float) for name in columns)
    y = np.log10(y) if log else y
    ends = chart.layout[f"{axis[0]}axis{axis[1:]}"].range, chart.layout.yaxis.range
    places = [
        (values - low) / (high - low) * size
        for values, (low, high), size in zip((x, y), ends, _PANEL_PX, strict=True)
    ]
    for letter, at, height, lift in zip(known["letter"], x, y, letter_lifts(*places), strict=True):
        chart.add_annotation(
            x=at, y=height, xref=axis, yref="y", yshift=lift, text=f"<b>{letter}</b>", showarrow=False,
            font={"color": theme.ink, "size": 11},
        )  # fmt: skip


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


def _hover(row: dict[str, Any], error: Error) -> str:
    return (
        f"<b>{row['letter']} · {row['setting']}</b><br>{error.name} {error.text(row[error.column])}<br>reads "
        f"{numbers.share(row['density'])} of the causal area<br>prefill {numbers.millis(row['total_ms'])}, dense "
        f"{numbers.millis(row['dense_ms'])}"
    )
