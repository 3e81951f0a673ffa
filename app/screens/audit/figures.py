"""The pictures of the dense audit: error against its bounds, audited against certified mass, residuals."""

from __future__ import annotations

import math
from collections.abc import Iterator
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design, numbers
from routesparse.engine.method import families

MOST_DRAWN = 600  # more of them hide one another, and each costs the browser
_LAYOUT: dict[str, Any] = {
    "height": 340,
    "showlegend": False,
    "dragmode": False,
    "margin": {"l": 54, "r": 10, "t": 8, "b": 40},
}
UNIT = ["run_id", "layer", "head", "segment", "batch_index"]


def drawn(units: pd.DataFrame) -> pd.DataFrame:
    """At most MOST_DRAWN units for a scatter: every one below a claim, and a fixed random choice of the others."""
    if len(units) <= MOST_DRAWN:
        return units
    below = (units["covered"] == False) | (units["violations"] > 0)  # noqa: E712  NULL is not below
    rest = units[~below].sample(max(0, MOST_DRAWN - int(below.sum())), random_state=0)
    return pd.concat([units[below], rest]).sort_index()


def error_figure(units: pd.DataFrame, theme: design.Theme) -> go.Figure:
    """Worst-row error against both bounds on logarithmic axes; a point below y = x would be a violation."""
    values = units[["max_error", "bound_tight", "bound_paper"]]
    known = units[(units["max_error"] > 0) & np.isfinite(values).all(axis=1)]
    low, high = _log_range(values.loc[known.index])
    paper = {"symbol": "circle-open", "size": 6, "color": theme.mute, "opacity": 0.55}
    traces = [
        design.diagonal_trace(low, high, theme),
        _points(known, "max_error", "bound_paper", paper, _hover("paper's bound")),
        *_by_pattern(known, "max_error", "bound_tight", theme, "tight bound"),
    ]
    axis = {
        "type": "log",
        "range": [math.log10(low), math.log10(high)],
        "fixedrange": True,
        **design.log_ticks(low, high),
    }
    return design.chart(
        theme,
        traces,
        xaxis={**axis, "title": {"text": "error of the worst audited row"}},
        yaxis={**axis, "title": {"text": "bound"}},
        **_LAYOUT,
    )


def mass_figure(units: pd.DataFrame, tau: float | None, theme: design.Theme, name: str = "τ") -> go.Figure:
    """Audited retained mass of the body against the in-prompt certificate; a point below y = x is not covered.

    tau: the line, None for none; name: what it is called.
    """
    known = units.dropna(subset=["lower_mass"])
    values = pd.concat([known["lower_mass"], known["audited_mass"]])
    low = float(values.min()) - 0.01 if len(values) else 0.8
    lines, labels = [], []
    if tau is not None:
        lines = [design.upright(tau, {"color": theme.warn, "width": 1.2, "dash": "dash"})]
        place = {"x": tau, "xanchor": "left", "xshift": 4, "y": 0.02, "yref": "paper", "showarrow": False}
        labels = [{**place, "text": f"{name} = {tau:.2f}", "font": {"size": 11, "color": theme.warn}}]
    axis = {"range": [low, 1.002], "fixedrange": True}
    return design.chart(
        theme,
        [
            design.diagonal_trace(low, 1.002, theme),
            *_by_pattern(known, "lower_mass", "audited_mass", theme, "audited mass"),
        ],
        shapes=lines,
        annotations=labels,
        xaxis={**axis, "title": {"text": "certified retained mass (in-prompt)"}},
        yaxis={**axis, "title": {"text": "audited retained mass"}},
        **_LAYOUT,
    )


def residual_figure(
    residuals: pd.DataFrame, deltas: list[tuple[str, float]], theme: design.Theme
) -> go.Figure:
    """Histogram rows of ``residual_bins`` and a line per delta."""
    chart = go.Figure()
    beyond = max((delta for _, delta in deltas), default=np.inf)
    chart.add_bar(
        x=(residuals["low"] + residuals["high"]) / 2,
        y=residuals["share"],
        width=(residuals["high"] - residuals["low"]) * 0.96,
        marker={
            "color": [
                theme.warn if low >= beyond else design.blend(theme.panel, theme.accent, 0.72)
                for low in residuals["low"]
            ],
            "line": {"width": 0},
        },
        customdata=residuals[["low", "high", "units"]],
        hovertemplate="g − g* from %{customdata[0]:.4f} to %{customdata[1]:.4f}<br>%{y:.1%}, "
        "%{customdata[2]} units<extra></extra>",
    )
    for i, (name, delta) in enumerate(deltas):
        delta_line(chart, delta, name, i, theme)
    chart.update_xaxes(title="residual g − g*; positive: the probe overstated g", fixedrange=True)
    chart.update_yaxes(title="share of units", tickformat=".0%", fixedrange=True)
    chart = _layout(chart, theme)
    chart.update_layout(bargap=0, barcornerradius=0, height=280)
    return chart


def forward_figure(errors: pd.DataFrame, theme: design.Theme) -> go.Figure:
    """One bar per layer: how far its attention output is from the dense forward's."""
    chart = go.Figure()
    chart.add_bar(
        x=errors["layer"],
        y=errors["forward_error"],
        marker={"color": design.blend(theme.panel, theme.accent, 0.72), "line": {"width": 0}},
        hovertemplate="layer %{x}<br>%{y:.4f}<extra></extra>",
    )
    chart.update_xaxes(
        title="layer",
        dtick=1 if len(errors) <= 16 else 4,
        showgrid=False,
        range=[-0.5, errors["layer"].max() + 0.5],
    )
    chart.update_yaxes(title="relative error", rangemode="tozero", fixedrange=True)
    chart = _layout(chart, theme)
    chart.update_layout(height=220, bargap=0.4)
    return chart


def residual_bins(residual: pd.Series, bins: int = 40) -> pd.DataFrame:
    """``low``, ``high``, ``units``, ``share`` of equal bins over all residuals; empty without any."""
    values = residual[np.isfinite(residual)].to_numpy()
    if not len(values):
        return pd.DataFrame({"low": [], "high": [], "units": [], "share": []})
    counts, edges = np.histogram(values, bins=bins)
    return pd.DataFrame(
        {"low": edges[:-1], "high": edges[1:], "units": counts, "share": counts / len(values)}
    )


def delta_line(chart: go.Figure, delta: float, name: str, place: int, theme: design.Theme) -> None:
    """A vertical line at delta_q with its name, one below the other where there are several."""
    chart.add_vline(x=delta, line={"color": theme.warn, "width": 1.4, "dash": "dash"})
    chart.add_annotation(
        x=delta,
        y=1 - 0.09 * place,
        yref="paper",
        xanchor="left",
        xshift=4,
        text=name,
        showarrow=False,
        font={"size": 11, "color": theme.warn},
    )


def pattern_legend(units: pd.DataFrame, theme: design.Theme, *more: str) -> str:
    """HTML: the mark, letter and name of each family, those of the units among them, and further marks."""
    items = [
        f'<span><b style="color:{theme.pattern(pattern)};margin-right:5px">{families.look(pattern).mark}</b>'
        f"{design.letter(pattern)} · {design.name(pattern)}</span>"
        for pattern in families.in_order(units["pattern"])
        if pattern != families.DENSE
    ]
    return f'<div class="rs-legend">{"".join(items)}{"".join(f"<span>{text}</span>" for text in more)}</div>'


def _by_pattern(
    units: pd.DataFrame, x: str, y: str, theme: design.Theme, name: str
) -> Iterator[dict[str, Any]]:
    """A trace for each family of the units, in its colour and with its mark."""
    for family, rows in units.groupby("pattern", sort=False):
        pattern = str(family)
        marker = {
            "symbol": families.look(pattern).symbol,
            "size": 8,
            "color": theme.pattern(pattern),
            "opacity": 0.85,
            "line": {"width": 1, "color": theme.panel},
        }
        yield _points(rows, x, y, marker, _hover(name, pattern))


def _points(rows: pd.DataFrame, x: str, y: str, marker: dict[str, Any], hover: str) -> dict[str, Any]:
    return {
        "type": "scatter",
        "x": rows[x].tolist(),
        "y": rows[y].tolist(),
        "mode": "markers",
        "marker": marker,
        "customdata": _told(rows),
        "hovertemplate": hover,
    }


def _told(rows: pd.DataFrame) -> list[list[object]]:
    """What a point carries: the unit (UNIT), and the values of its hover as printed."""
    return [
        [*unit, unit[3] + 1, numbers.mass(error, 4), numbers.bound(least), numbers.mass(mass)]
        for unit, error, least, mass in zip(
            rows[UNIT].itertuples(index=False, name=None),
            rows["max_error"],
            rows["lower_mass"],
            rows["audited_mass"],
            strict=True,
        )
    ]


def _hover(last: str, pattern: str | None = None) -> str:
    """Plotly's template of a hover: said once for all points, because every point's own words outweigh the chart."""
    family = "" if pattern is None else f" · {design.name(pattern)}"
    return (
        f"<b>layer %{{customdata[1]}}, head %{{customdata[2]}}</b>, segment %{{customdata[5]}}{family}"
        "<br>error, worst row %{customdata[6]}<br>certified %{customdata[7]}, audited %{customdata[8]}"
        f"<br>{last} %{{y:.3g}}<extra></extra>"
    )


def _log_range(values: pd.DataFrame) -> tuple[float, float]:
    positive = values.to_numpy()[values.to_numpy() > 0]
    if not len(positive):
        return 1e-3, 10.0
    return float(positive.min()) / 1.4, float(positive.max()) * 1.4


def _layout(chart: go.Figure, theme: design.Theme) -> go.Figure:
    chart.update_layout(template=design.template(theme), **_LAYOUT)
    return chart
