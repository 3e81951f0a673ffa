"""The pictures of one unit: risk against time, the probe, and who reads which part of the prompt."""

from __future__ import annotations

from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app import design
from routesparse.engine.records import RunRow
from routesparse.engine.store.queries import Heatmap
from routesparse.engine.store.thumbnail import KINDS

_MAX_SIDE = 1024


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


def probe_figure(heatmap: Heatmap, theme: design.Theme, block_tokens: int) -> go.Figure:
    """Block mass by probe row and key block (square-root scale), with a strip for the rows' kinds."""
    mass = _limited(heatmap.mass)
    rows, columns = mass.shape
    keys = np.arange(columns) * heatmap.block_pool * block_tokens
    kinds = [" and ".join(name for bit, name in enumerate(KINDS) if k >> bit & 1) for k in heatmap.kinds]
    labels = [f"{p:,} ({k})" for p, k in zip(heatmap.positions, kinds, strict=True)]
    chart = go.Figure()
    chart.add_heatmap(
        z=np.sqrt(mass),
        x=keys,
        y=list(range(rows)),
        text=np.char.mod("%.4f", mass),
        customdata=np.broadcast_to(np.array(labels)[:, None], mass.shape),
        colorscale=[[0, theme.panel], [0.12, theme.scale[0]], [0.5, theme.scale[1]], [1, theme.scale[2]]],
        showscale=False,
        hovertemplate="row at token %{customdata}<br>keys from token %{x:,}"
        "<br>largest mass of a block %{text}<extra></extra>",
    )
    width = keys[-1] * 0.012 + 1
    for bit, color in enumerate(_kind_colors(theme)):
        at = np.flatnonzero(heatmap.kinds >> bit & 1)
        chart.add_scatter(
            x=np.full(len(at), -width * (5 - bit)),
            y=at,
            mode="markers",
            marker={"symbol": "square", "size": max(2, min(4, 190 // rows)), "color": color},
            hoverinfo="skip",
        )
    chart.update_yaxes(range=[rows - 0.5, -0.5], showticklabels=False, showgrid=False, zeroline=False)
    chart.update_xaxes(
        range=[-width * 6, keys[-1] * 1.005 + 1],
        showgrid=False,
        zeroline=False,
        nticks=5,
        tickformat=",",
        title="key token",
    )
    margin = {"l": 4, "r": 6, "t": 4, "b": 38}
    chart.update_layout(template=design.template(theme), height=236, showlegend=False, margin=margin)
    return chart


def probe_legend(heatmap: Heatmap, theme: design.Theme) -> str:
    """HTML: which strip is which kind of row, and how much was pooled."""
    marks = "".join(
        f'<span><i style="background:{color};width:9px;height:9px"></i>{name}</span>'
        for name, color in zip(KINDS, _kind_colors(theme), strict=True)
        if (heatmap.kinds >> KINDS.index(name) & 1).any()
    )
    pooled = f"a cell: max over {heatmap.row_pool} rows × {heatmap.block_pool} key blocks"
    return f'<div class="rs-legend">{marks}<span>{pooled}</span></div>'


def probe_rows(heatmap: Heatmap) -> pd.DataFrame:
    """The heatmap as long rows for export."""
    rows, columns = heatmap.mass.shape
    return pd.DataFrame(
        {
            "row_token": np.repeat(heatmap.positions, columns),
            "row_kinds": np.repeat(heatmap.kinds, columns),
            "key_block": np.tile(np.arange(columns) * heatmap.block_pool, rows),
            "mass": heatmap.mass.ravel(),
        }
    )


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


def _kind_colors(theme: design.Theme) -> tuple[str, ...]:
    """Not the patterns' hues: these mean kinds of rows."""
    return theme.accent, theme.ink, theme.mute, theme.warn


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


def _limited(mass: np.ndarray) -> np.ndarray:
    """At most 1024 x 1024 cells, max-pooled."""
    for axis in (0, 1):
        step = -(-mass.shape[axis] // _MAX_SIDE)
        if step > 1:
            mass = np.maximum.reduceat(mass, np.arange(0, mass.shape[axis], step), axis=axis)
    return mass
