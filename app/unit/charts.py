"""The picture of one unit's candidates: risk against predicted time."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design, reason_words


def scatter(
    candidates: pd.DataFrame, gate_threshold: float | None, tau: float, theme: design.Theme
) -> go.Figure:
    """Risk against predicted time: filled where g >= lambda, the lower hull dotted, the choice ringed.

    gate_threshold: lambda of the unit, None where it was not recorded; tau: of its own certificate.
    """
    positive = candidates.loc[candidates["risk"] > 0, "risk"]
    floor = max(float(positive.min()) * 0.5 if len(positive) else 0.005, 1e-4)
    shown = candidates.assign(height=candidates["risk"].clip(lower=floor))
    hull = _hull(shown)
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": hull["kernel_us"].tolist(),
            "y": hull["height"].tolist(),
            "mode": "lines",
            "line": {"color": theme.mute, "width": 1, "dash": "dot"},
            "hoverinfo": "skip",
        }
    ]
    # Candidates may share their place: the chosen one is drawn last.
    family = shown.groupby("pattern")["chosen"].transform("any")
    drawn = shown.assign(family=family).sort_values(["family", "chosen"], kind="stable")
    for pattern, rows in drawn.groupby("pattern", sort=False):
        color = theme.pattern(str(pattern))
        filled = rows["admissible"].to_numpy()
        traces.append(
            {
                "type": "scatter",
                "x": rows["kernel_us"].tolist(),
                "y": rows["height"].tolist(),
                "mode": "markers+text",
                "text": [design.letter(str(pattern))] * len(rows),
                "textfont": {
                    "size": 10,
                    "color": [design.text_on(color) if f else theme.ink for f in filled],
                },
                "marker": {
                    "size": 15,
                    "color": [color if f else theme.panel for f in filled],
                    "line": {"color": color, "width": 1.4},
                },
                "customdata": [
                    [
                        escape(str(row.budget)),
                        row.risk,
                        row.gate_statistic,
                        escape(reason_words.shown(str(row.reason))),
                    ]
                    for row in rows.itertuples()
                ],
                "hovertemplate": "<b>%{customdata[0]}</b><br>%{x:,.0f} µs predicted · risk %{customdata[1]:.3f} · "
                "g %{customdata[2]:.3f}<br>%{customdata[3]}<extra></extra>",
            }
        )
    chosen = shown[shown["chosen"]]
    traces.append(
        {
            "type": "scatter",
            "x": chosen["kernel_us"].tolist(),
            "y": chosen["height"].tolist(),
            "mode": "markers",
            "marker": {"size": 23, "symbol": "circle-open", "color": theme.ink, "line": {"width": 2}},
            "hoverinfo": "skip",
        }
    )
    lines, labels = [], []
    for at, name, color, side in (
        (gate_threshold, "1 − λ", theme.accent, "top"),
        (tau, "1 − τ", theme.warn, "bottom"),
    ):
        if at is not None and at < 1:
            value = 1 - at
            across = {"type": "line", "xref": "paper", "x0": 0, "x1": 1, "y0": value, "y1": value}
            lines.append({**across, "line": {"color": color, "width": 1.2}})
            place = {"x": 1, "xref": "paper", "xanchor": "right", "y": math.log10(value), "yanchor": side}
            font = {"size": 11, "color": color}
            labels.append({**place, "text": name, "font": font, "showarrow": False})
    top = math.log10(max(1.0, float(shown["height"].max()))) + 0.1
    return design.chart(
        theme,
        traces,
        shapes=lines,
        annotations=labels,
        yaxis={
            "type": "log",
            "range": [math.log10(floor) - 0.15, top],
            "title": {"text": "risk R"},
            "dtick": 1,
        },
        xaxis={
            "type": "log",
            "title": {"text": "predicted kernel time, µs"},
            **design.log_ticks(shown["kernel_us"].min(), shown["kernel_us"].max()),
            "zeroline": False,
        },
        height=270,
        showlegend=False,
        margin={"l": 48, "r": 8, "t": 6, "b": 38},
    )


def _hull(shown: pd.DataFrame) -> pd.DataFrame:
    """The candidates that no other one beats in both time and risk, on their lower convex hull."""
    hull: list[Any] = []
    for row in shown.sort_values(["kernel_us", "height"]).itertuples():
        if hull and row.height >= hull[-1].height:
            continue
        while len(hull) > 1 and _above(hull[-2], hull[-1], row):
            hull.pop()
        hull.append(row)
    return pd.DataFrame([{"kernel_us": row.kernel_us, "height": row.height} for row in hull])


def _above(left: Any, middle: Any, right: Any) -> bool:
    before = (middle.height - left.height) * (right.kernel_us - left.kernel_us)
    return before >= (right.height - left.height) * (middle.kernel_us - left.kernel_us)
