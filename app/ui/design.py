"""Palette and Plotly template of the dashboard, light and dark.

One accent; the colours themselves are those of engine/export/palette.py, which reports share.
"""

from __future__ import annotations

import math
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from routesparse.engine.export.palette import (
    DARK,
    LIGHT,
    Theme,
    blend,
    contrast,
    letter,
    name,
    pattern_color,
    scale_color,
    strength,
    text_on,
)
from routesparse.engine.method import families

__all__ = [
    "DARK",
    "FONT",
    "LIGHT",
    "Theme",
    "blend",
    "chart_config",
    "contrast",
    "current_theme",
    "diagonal",
    "letter",
    "log_ticks",
    "name",
    "pattern_color",
    "scale_color",
    "strength",
    "template",
    "text_on",
]

FONT = '"Source Sans", "Source Sans 3", system-ui, sans-serif'


def current_theme() -> Theme:
    """The theme the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def template(theme: Theme) -> go.layout.Template:
    """The Plotly template: transparent, thin lines, tabular figures, one accent."""
    axis = {
        "gridcolor": theme.line,
        "linecolor": theme.line,
        "zerolinecolor": theme.line,
        "tickcolor": theme.line,
        "tickfont": {"color": theme.mute, "size": 11},
        "title": {"font": {"color": theme.mute, "size": 12}},
        "automargin": False,
    }
    return go.layout.Template(
        layout={
            "paper_bgcolor": "rgba(0,0,0,0)",
            "plot_bgcolor": "rgba(0,0,0,0)",
            "font": {"family": FONT, "size": 12, "color": theme.ink},
            "colorway": [theme.accent, *map(theme.pattern, families.in_order())],
            "xaxis": axis,
            "yaxis": axis,
            "hoverlabel": {
                "bgcolor": theme.panel,
                "bordercolor": theme.line,
                "font": {"family": FONT, "size": 12, "color": theme.ink},
                "align": "left",
            },
            "margin": {"l": 36, "r": 8, "t": 8, "b": 36},
            "modebar": {"bgcolor": "rgba(0,0,0,0)", "color": theme.mute, "activecolor": theme.accent},
        }
    )


def diagonal(chart: go.Figure, low: float, high: float, theme: Theme) -> None:
    """Add y = x, dotted: what a chart of a claim against the truth is read by."""
    chart.add_scatter(
        x=[low, high],
        y=[low, high],
        mode="lines",
        line={"color": theme.mute, "width": 1.2, "dash": "dot"},
        hoverinfo="skip",
    )


_LEAST_ON_LOG_AXIS = 1e-9


def log_ticks(low: float, high: float) -> dict[str, list[Any]]:
    """Ticks of a logarithmic axis: 1, 2 and 5 of every decade, written out (Plotly's own says "5" for 50 and 500).

    What lies at 0 or below has no place on such an axis.
    """
    low = max(low, _LEAST_ON_LOG_AXIS)
    high = max(high, low)
    decades = range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)
    ticks = [float(f"{first}e{decade}") for decade in decades for first in (1, 2, 5)]
    return {"tickvals": ticks, "ticktext": [f"{tick:,g}" for tick in ticks]}


def chart_config(name: str) -> dict[str, object]:
    """Plotly options: no logo, no zoom buttons, the picture as SVG under a sensible name."""
    remove = ["zoom", "pan", "select", "lasso", "zoomIn", "zoomOut", "autoScale", "resetScale"]
    return {
        "displaylogo": False,
        "modeBarButtonsToRemove": remove,
        "toImageButtonOptions": {"format": "svg", "filename": name},
    }
