"""The pictures of one unit: risk against time, and who reads which part of the prompt."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app import design
from routesparse.engine.records import RunRow


def scatter(candidates: pd.DataFrame, run: RunRow, theme: design.Theme) -> go.Figure:
    """Risk against predicted time: filled where g >= lambda, the lower hull dotted, the choice ringed."""
    positive = candidates.loc[candidates["risk"] > 0, "risk"]
    floor = max(float(positive.min()) * 0.5 if len(positive) else 0.005, 1e-4)
    shown = candidates.assign(height=candidates["risk"].clip(lower=floor))
    chart = go.Figure()
    hull = _hull(shown)
    chart.add_scatter(
        x=hull["kernel_us"],
        y=hull["height"],
        mode="lines",
        line={"color": theme.mute, "width": 1, "dash": "dot"},
        hoverinfo="skip",
    )
    for pattern, rows in shown.groupby("pattern", sort=False):
        color = theme.patterns[str(pattern)]
        filled = rows["admissible"].to_numpy()
        chart.add_scatter(
            x=rows["kernel_us"],
            y=rows["height"],
            mode="markers+text",
            text=[design.LETTERS[str(pattern)]] * len(rows),
            textfont={"size": 9.5, "color": [design.text_on(color) if f else theme.ink for f in filled]},
            marker={
                "size": 15,
                "color": [color if f else theme.panel for f in filled],
                "line": {"color": color, "width": 1.4},
            },
            customdata=np.column_stack(
                [rows["budget"].map(escape), rows["risk"], rows["gate"], rows["reason"].map(escape)]
            ),
            hovertemplate="<b>%{customdata[0]}</b><br>%{x:,.0f} µs · risk %{customdata[1]:.3f} · "
            "g %{customdata[2]:.3f}<br>%{customdata[3]}<extra></extra>",
        )
    chosen = shown[shown["chosen"]]
    chart.add_scatter(
        x=chosen["kernel_us"],
        y=chosen["height"],
        mode="markers",
        marker={"size": 23, "symbol": "circle-open", "color": theme.ink, "line": {"width": 2}},
        hoverinfo="skip",
    )
    for value, name, color, side in (
        (1 - run.gate, "1 − λ", theme.accent, "top"),
        (1 - run.tau, "1 − τ", theme.warn, "bottom"),
    ):
        if value > 0:
            chart.add_hline(y=value, line={"color": color, "width": 1.2})
            label = {"font": {"size": 11, "color": color}, "showarrow": False, "text": name}
            chart.add_annotation(x=1, xref="paper", xanchor="right", y=np.log10(value), yanchor=side, **label)
    chart.update_yaxes(
        type="log",
        range=[np.log10(floor) - 0.15, np.log10(max(1.0, shown["height"].max())) + 0.1],
        title="risk R",
        dtick=1,
    )
    chart.update_xaxes(type="log", title="predicted kernel time, µs", dtick="D2", zeroline=False)
    margin = {"l": 48, "r": 8, "t": 6, "b": 38}
    chart.update_layout(template=design.template(theme), height=270, showlegend=False, margin=margin)
    return chart


def readers_figure(readers: pd.DataFrame, theme: design.Theme, block_tokens: int, picked: int) -> go.Figure:
    """Per key block, the share of heads whose last rows give it at least one percent of their mass."""
    chart = go.Figure()
    plain = design.blend(theme.panel, theme.accent, 0.72)
    chart.add_bar(
        x=readers["key_block"] * block_tokens,
        y=readers["heads_share"],
        width=readers["blocks"] * block_tokens * 0.9,
        offset=0,
        marker={
            "color": [theme.warn if block == picked else plain for block in readers["key_block"]],
            "line": {"width": 0},
        },
        customdata=readers["mean_mass"],
        hovertemplate="keys from token %{x:,}<br>%{y:.0%} of heads · mean mass %{customdata:.4f}"
        "<extra></extra>",
    )
    chart.update_yaxes(range=[0, 1.02], tickformat=".0%", nticks=3, fixedrange=True)
    chart.update_xaxes(tickformat=",", title="key token", fixedrange=True, showgrid=False)
    margin = {"l": 44, "r": 6, "t": 6, "b": 38}
    chart.update_layout(
        template=design.template(theme), height=150, margin=margin, bargap=0, barcornerradius=0
    )
    return chart


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
