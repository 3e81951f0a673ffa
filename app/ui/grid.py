"""A small grid of coloured cells with a text in each and a hover, for maps and matrices other than the routing map."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design


@dataclass(frozen=True)
class Axis:
    """Labels along one side, and what they are."""

    title: str
    labels: list[str]


def figure(cells: pd.DataFrame, rows: Axis, columns: Axis, theme: design.Theme, row_px: int) -> go.Figure:
    """cells: ``row``, ``column`` (places), ``color``, ``text``, ``hover``; places without a cell stay grey."""
    shape = (len(rows.labels), len(columns.labels))
    colors = np.full(shape, theme.null, object)
    colors[cells["row"], cells["column"]] = cells["color"]
    flat = colors.ravel()
    palette = list(dict.fromkeys(flat))
    place = {color: i for i, color in enumerate(palette)}
    chart = go.Figure()
    chart.add_heatmap(
        z=np.array([place[c] + 0.5 for c in flat]).reshape(shape),
        zmin=0,
        zmax=len(palette),
        colorscale=[[(i + edge) / len(palette), c] for i, c in enumerate(palette) for edge in (0, 1)],
        showscale=False,
        xgap=3 if shape[1] <= 16 else 1,
        ygap=3 if shape[0] <= 16 else 1,
        hoverinfo="skip",
    )
    inks = cells["color"].map(design.text_on)
    if row_px >= 15:
        for ink, part in cells.groupby(inks):
            chart.add_scatter(
                x=part["column"],
                y=part["row"],
                text=part["text"],
                mode="text",
                textfont={"color": ink, "size": 11 if row_px >= 28 else 9},
                selected={"textfont": {"color": ink}},
                unselected={"textfont": {"color": ink}},
                hoverinfo="skip",
            )
    # Invisible squares take hover and click: a heatmap's own selection comes back empty.
    chart.add_scatter(
        x=cells["column"],
        y=cells["row"],
        mode="markers",
        marker={"symbol": "square", "size": max(8, row_px - 6), "opacity": 0},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        customdata=cells[["row", "column"]].to_numpy(),
        text=cells["hover"],
        hovertemplate="%{text}<extra></extra>",
    )
    for update, axis in ((chart.update_xaxes, columns), (chart.update_yaxes, rows)):
        step = 1 if len(axis.labels) <= 16 else 4
        update(
            title=axis.title,
            tickvals=list(range(0, len(axis.labels), step)),
            ticktext=axis.labels[::step],
            showgrid=False,
            zeroline=False,
            fixedrange=True,
            ticks="",
        )
    chart.update_xaxes(side="top", range=[-0.5, shape[1] - 0.5])
    chart.update_yaxes(range=[shape[0] - 0.5, -0.5], automargin=True)
    chart.update_layout(
        template=design.template(theme),
        height=row_px * shape[0] + 52,
        margin={"l": 46, "r": 6, "t": 44, "b": 6},
        showlegend=False,
        hovermode="closest",
        dragmode=False,
    )
    return chart


def diverging(value: float, largest: float, theme: design.Theme) -> str:
    """Blue below zero, rust above, pale near it: signs are also printed, colour is not the only channel."""
    share = min(1.0, abs(value) / largest) if largest > 0 else 0.0
    return design.blend(theme.panel, theme.warn if value > 0 else theme.accent, 0.06 + 0.84 * share)


def row_height(rows: int) -> int:
    """Pixels of a row so that 8 and 32 layers both fit a screen."""
    return 34 if rows <= 12 else max(15, 520 // rows)
