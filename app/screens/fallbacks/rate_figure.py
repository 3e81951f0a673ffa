"""Fallbacks by layer as stacked bars, three kinds with a colour and a hatch each; beside them who ran uncertified."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design, numbers

UNCERTIFIED = "ran uncertified"
_WIDTH, _NARROW = 0.55, 0.25
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
            width=_WIDTH,  # else a bar is as wide as the layers without one
            offset=-_WIDTH / 2,
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
    missed = layers.groupby("layer").agg(units=("uncertified", "sum"), of=("units", "sum"))
    missed = missed[missed["units"] > 0]
    if len(missed):
        # Uncertified is no fifth kind: an expanded unit may be one, so its bar stands beside the stack.
        chart.add_bar(
            x=missed.index,
            y=missed["units"] / missed["of"],
            width=_NARROW,
            offset=_WIDTH / 2,
            base=0,
            name=UNCERTIFIED,
            marker={
                "color": theme.levels["red"],
                "pattern": {"shape": "x", "fgcolor": theme.panel, "fillmode": "overlay", "size": 5},
                "line": {"width": 0},
            },
            text=[
                f"<b>layer {row.Index}</b> · {UNCERTIFIED}<br>{int(row.units)} of "
                f"{numbers.several(int(row.of), 'unit')}"
                for row in missed.itertuples()
            ],
            textposition="none",
            hovertemplate="%{text}<extra></extra>",
        )
    chart.add_hline(y=limit, line={"color": theme.warn, "width": 1.3, "dash": "dash"})
    count = layers["layer"].nunique()
    chart.update_xaxes(title="layer", dtick=1 if count <= 16 else 4, showgrid=False, fixedrange=True)
    chart.update_xaxes(range=[layers["layer"].min() - 0.5, layers["layer"].max() + 0.5])
    top = layers[layers["kind"] != "kept"].groupby("layer")["share"].sum().max() if len(layers) else 0.0
    top = max([np.nan_to_num(top), *(missed["units"] / missed["of"])])
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


def legend(theme: design.Theme, limit: float, uncertified: bool) -> str:
    """HTML of the kinds, each with its colour and hatch, and of the line; uncertified: whether any unit ran so."""
    marks = {"": "", "/": "▨", ".": "⁙"}
    items = [
        f'<span><i style="background:{color};color:{theme.panel}">{marks[HATCHES[kind]]}</i>{kind}</span>'
        for kind, color in colors(theme).items()
    ]
    if uncertified:
        red = theme.levels["red"]
        items.append(
            f'<span><i style="background:{red};color:{theme.panel}">✕</i>{UNCERTIFIED}, of units</span>'
        )
    line = f'<i style="height:0;border-top:2px dashed {theme.warn};border-radius:0"></i>'
    items.append(f"<span>{line}limit for dense by fallback {numbers.share(limit, 0)}</span>")
    return f'<div class="rs-legend">{"".join(items)}</div>'
