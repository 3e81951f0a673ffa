"""Charts of an evaluation: loss over area, and each task's difference; points with their intervals."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

import plotly.graph_objects as go

from routesparse.app.ui import design
from routesparse.engine.results import wording
from routesparse.engine.results.evaluations import Estimate, MethodRow
from routesparse.engine.results.tables import loss_ends, on_front

_GOOD = 80.0
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
    for ours in (False, True):
        part = [row for row in known if row.method.startswith("routesparse") == ours]
        shown = [row in line or row.name == picked for row in part]
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
            text=[escape(row.name) if one else "" for row, one in zip(part, shown, strict=True)],
            # Neighbours on the front are named below and above in turn.
            textposition=["top left" if row in line[1::2] else "bottom right" for row in part],
            textfont={"color": theme.ink, "size": 11},
            customdata=[
                f"<b>{escape(row.name)}</b><br>{wording.change(row)} {unit}"
                f"<br>reads {100 * (row.area or 0):.1f} % of the area<br>n = {wording.prompts(row)}"
                for row in part
            ],
            hovertemplate="%{customdata}<extra></extra>",
        )
    least = min((row.area or 1.0 for row in known), default=0.1)
    chart.update_xaxes(
        type="log",
        title={"text": "share of the causal area read"},
        range=[math.log10(least * 0.85), math.log10(1.25)],
        tickvals=_TICKS,
        ticktext=[f"{100 * tick:g} %" for tick in _TICKS],
        fixedrange=True,
    )
    low, high = loss_ends(known)
    chart.update_yaxes(
        title={"text": f"against dense, {unit}", "standoff": 6},
        range=[low, high],
        fixedrange=True,
        automargin=True,
    )
    return _laid_out(chart, theme, 380)


def by_task(row: MethodRow, theme: design.Theme) -> go.Figure:
    """One method's difference in every task; hollow where dense scores below 80, which says nothing about sparse."""
    tasks = list(reversed(row.tasks))
    good = [one.dense >= _GOOD for one in tasks]
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
