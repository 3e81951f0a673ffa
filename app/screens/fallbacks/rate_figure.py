"""Fallbacks by layer as stacked bars: three kinds, each with its own colour and its own hatch."""

from __future__ import annotations

import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design, numbers

HATCHES = {"dense by fallback": "", "expanded": "/", "dense by the router": "."}


def colors(theme: design.Theme) -> dict[str, str]:
    """A colour per kind: the one that costs speed stands out."""
    return {
        "dense by fallback": theme.warn,
        "expanded": theme.accent,
        "dense by the router": theme.pattern("dense"),
    }


def by_layer(layers: pd.DataFrame, limit: float, measure: str, theme: design.Theme) -> go.Figure:
    """layers: ``layer``, ``kind``, ``share``, ``units``, ``kernel_us``; measure: what the share is of, for the axis."""
    chart = go.Figure()
    for kind, color in colors(theme).items():
        rows = layers[layers["kind"] == kind]
        chart.add_bar(
            x=rows["layer"],
            y=rows["share"],
            width=0.65,  # else a bar is as wide as the layers without one
            name=kind,
            marker={
                "color": color,
                "pattern": {"shape": HATCHES[kind], "fgcolor": theme.panel, "fillmode": "overlay", "size": 5},
                "line": {"width": 0},
            },
            text=[
                f"<b>layer {row.layer}</b> · {kind}<br>{numbers.share(row.share)} of {measure}"
                f"<br>{numbers.several(int(row.units), 'unit')}, predicted {numbers.micros(row.kernel_us)}"
                for row in rows.itertuples()
            ],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    chart.add_hline(y=limit, line={"color": theme.warn, "width": 1.3, "dash": "dash"})
    count = layers["layer"].nunique()
    chart.update_xaxes(title="layer", dtick=1 if count <= 16 else 4, showgrid=False, fixedrange=True)
    chart.update_xaxes(range=[layers["layer"].min() - 0.5, layers["layer"].max() + 0.5])
    top = layers[layers["kind"] != "kept"].groupby("layer")["share"].sum().max() if len(layers) else 0.0
    chart.update_yaxes(
        title=f"share of {measure}", tickformat=".0%", range=[0, max(top, limit) * 1.12], fixedrange=True
    )
    chart.update_layout(
        template=design.template(theme),
        barmode="stack",
        height=280,
        showlegend=False,
        margin={"l": 56, "r": 8, "t": 8, "b": 38},
    )
    return chart


def legend(theme: design.Theme, limit: float) -> str:
    """HTML of the three kinds, each with its colour and hatch, and of the line."""
    marks = {"": "", "/": "▨", ".": "⁙"}
    items = [
        f'<span><i style="background:{color};color:{theme.panel}">{marks[HATCHES[kind]]}</i>{kind}</span>'
        for kind, color in colors(theme).items()
    ]
    line = f'<i style="height:0;border-top:2px dashed {theme.warn};border-radius:0"></i>'
    items.append(f"<span>{line}limit for dense by fallback {numbers.share(limit, 0)}</span>")
    return f'<div class="rs-legend">{"".join(items)}</div>'
