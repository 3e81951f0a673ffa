"""Palette and Plotly template of the dashboard, light and dark.

One accent. Colour means pattern (the colour-blind-safe hues of Okabe and Ito, muted), strength means density,
and every cell carries its letter, so that colour is never the only channel. Text on a cell is the one of the
candidate inks with the best contrast, at least 4.5:1.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from functools import cache
from types import MappingProxyType
from typing import Any

import plotly.graph_objects as go
import streamlit as st

from routesparse.engine.method import families
from routesparse.engine.verdict import Level

FONT = '"Source Sans", "Source Sans 3", system-ui, sans-serif'


@dataclass(frozen=True)
class Theme:
    """The colours of one theme. hues: two that differ also for the colour-blind, for what is not a pattern."""

    name: str
    panel: str
    ink: str
    mute: str
    line: str
    accent: str
    warn: str
    null: str
    hues: tuple[str, str]
    scale: tuple[str, str, str]  # sequential metric: low, middle, high
    levels: Mapping[Level, str]  # of verdicts, as text on the panel

    def pattern(self, pattern: str) -> str:
        """A pattern's colour at full strength; grey for one that this version does not know."""
        return families.look(pattern).dark if self.name == "dark" else families.look(pattern).light


LIGHT = Theme(
    name="light",
    panel="#ffffff",
    ink="#1d2329",
    mute="#59626c",
    line="#e3e6e8",
    accent="#1f5fbf",
    warn="#b4451f",
    null="#e4e6e8",
    hues=("#82406f", "#12876a"),
    scale=("#eef3fa", "#7fa8dc", "#143f82"),
    levels=MappingProxyType({"red": "#b3261e", "amber": "#8a5a00", "green": "#1b6e3c"}),
)
DARK = Theme(
    name="dark",
    panel="#1b1f23",
    ink="#e8eaec",
    mute="#a3adb7",
    line="#2b3137",
    accent="#6aa5ee",
    warn="#f08a5d",
    null="#31373d",
    hues=("#c98abb", "#3fb593"),
    scale=("#23303f", "#3f74b5", "#b9d6fb"),
    levels=MappingProxyType({"red": "#ff8a80", "amber": "#e9b44c", "green": "#6fcf97"}),
)


def letter(pattern: str) -> str:
    """The letter in a pattern's cell; the initial of one that this version does not know."""
    return families.look(pattern).letter


def name(pattern: str) -> str:
    """A pattern as prose names it."""
    return families.look(pattern).label


def current_theme() -> Theme:
    """The theme the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def strength(density: float) -> float:
    """0 at 1 % of the causal area, 1 at all of it, logarithmic: budgets double from one to the next."""
    return min(1.0, max(0.0, 1.0 + math.log10(max(density, 1e-4)) / 2.0))


def pattern_color(theme: Theme, pattern: str, density: float) -> str:
    """A cell's colour: the pattern's hue, paler where less is kept."""
    return blend(theme.panel, theme.pattern(pattern), 0.32 + 0.68 * strength(density))


def blend(low: str, high: str, share: float) -> str:
    """``share`` of the way from one #rrggbb colour to another."""
    pairs = zip(_channels(low), _channels(high), strict=True)
    return "#" + "".join(f"{round(a + (b - a) * share):02x}" for a, b in pairs)


def scale_color(theme: Theme, share: float) -> str:
    """The sequential scale at ``share`` in [0, 1]."""
    low, middle, high = theme.scale
    return blend(low, middle, share * 2) if share <= 0.5 else blend(middle, high, share * 2 - 1)


def contrast(one: str, other: str) -> float:
    """WCAG contrast ratio of two #rrggbb colours."""
    lighter, darker = sorted((_luminance(one), _luminance(other)), reverse=True)
    return (lighter + 0.05) / (darker + 0.05)


def text_on(background: str) -> str:
    """Black or white, whichever reads better: one of them always reaches 4.5:1."""
    return max(("#000000", "#ffffff"), key=lambda ink: contrast(ink, background))


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


def chart(theme: Theme, traces: list[dict[str, Any]], **layout: Any) -> go.Figure:
    """A figure from plain properties: Plotly's own checks cost more than drawing (tests run them instead)."""
    return go.Figure(
        {"data": traces, "layout": {"template": _plain_template(theme.name), **layout}}, _validate=False
    )


@cache
def _plain_template(name: str) -> dict[str, Any]:
    return dict(template(DARK if name == "dark" else LIGHT).to_plotly_json())


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


def _channels(color: str) -> tuple[int, int, int]:
    return int(color[1:3], 16), int(color[3:5], 16), int(color[5:7], 16)


def _luminance(color: str) -> float:
    def linear(channel: float) -> float:
        return channel / 12.92 if channel <= 0.04045 else ((channel + 0.055) / 1.055) ** 2.4

    red, green, blue = (linear(channel / 255) for channel in _channels(color))
    return 0.2126 * red + 0.7152 * green + 0.0722 * blue
