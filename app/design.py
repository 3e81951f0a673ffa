"""Palette, page style and Plotly template of the dashboard, light and dark.

One accent. Colour means pattern (the colour-blind-safe hues of Okabe and Ito, muted), strength means density,
and every cell carries its letter, so that colour is never the only channel. Text on a cell is the one of the
candidate inks with the best contrast, at least 4.5:1.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import plotly.graph_objects as go
import streamlit as st

LETTERS = {"a_shape": "A", "vertical_slash": "V", "block_sparse": "B", "block_top_p": "P", "dense": "D"}
NAMES = {
    "a_shape": "A-shape",
    "vertical_slash": "vertical-slash",
    "block_sparse": "block-sparse",
    "block_top_p": "block top-p",
    "dense": "dense",
}
FONT = '"Source Sans", "Source Sans 3", system-ui, sans-serif'


@dataclass(frozen=True)
class Theme:
    """The colours of one theme; ``patterns`` are the colours at full strength."""

    name: str
    panel: str
    ink: str
    mute: str
    line: str
    accent: str
    warn: str
    null: str
    patterns: dict[str, str]
    scale: tuple[str, str, str]  # sequential metric: low, middle, high


LIGHT = Theme(
    name="light",
    panel="#ffffff",
    ink="#1d2329",
    mute="#59626c",
    line="#e3e6e8",
    accent="#1f5fbf",
    warn="#b4451f",
    null="#e4e6e8",
    patterns={
        "a_shape": "#8395ab",
        "vertical_slash": "#2468b0",
        "block_sparse": "#e39a2d",
        "block_top_p": "#12876a",
        "dense": "#82406f",
    },
    scale=("#eef3fa", "#7fa8dc", "#143f82"),
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
    patterns={
        "a_shape": "#8e9db0",
        "vertical_slash": "#5a9ee6",
        "block_sparse": "#e8b25a",
        "block_top_p": "#3fb593",
        "dense": "#c98abb",
    },
    scale=("#23303f", "#3f74b5", "#b9d6fb"),
)

_STYLE = """
<style>
.stApp {
  --rs-panel: light-dark(#ffffff, #1b1f23); --rs-ink: light-dark(#1d2329, #e8eaec);
  --rs-mute: light-dark(#59626c, #a3adb7); --rs-line: light-dark(#e3e6e8, #2b3137);
  --rs-accent: light-dark(#1f5fbf, #6aa5ee); --rs-warn: light-dark(#a83e1a, #f08a5d);
  --rs-pick: light-dark(#eaf1fa, #202c3a);
}
.stApp, .stApp button, .stApp input { font-variant-numeric: tabular-nums; }
[data-testid="stHeader"] { background: transparent; height: 2.2rem; }
[data-testid="stMainBlockContainer"] { max-width: 1640px; padding-left: 1.7rem; padding-right: 1.7rem; }
[data-testid="stSidebar"] { width: 184px !important; min-width: 184px; }
[data-testid="stSidebarHeader"] { height: 1.4rem; min-height: 0; margin-bottom: .4rem; padding: .6rem .8rem 0; }
[data-testid="stSidebarNav"]::before { content: "RouteSparse"; display: block; font-weight: 650;
  font-size: 1.08rem; padding: 0 .1rem .7rem; }
[data-testid="stNavSectionHeader"] { color: var(--rs-mute); font-size: .8rem; text-transform: uppercase;
  letter-spacing: .07em; }
[data-testid="stSidebarNavLink"][aria-current="page"] { background: var(--rs-pick) !important; }
[data-testid="stSidebarNavLink"][aria-current="page"] span { color: var(--rs-accent); font-weight: 600; }
.st-key-card-map, .st-key-card-candidates, .st-key-card-reason, .st-key-card-probe, .st-key-card-scatter,
.st-key-card-audit, .st-key-card-prompt, .st-key-card-runs { background: var(--rs-panel); padding: 14px 16px; }
.rs-title { font-size: 1.5rem; font-weight: 650; line-height: 1.2; letter-spacing: -.005em; }
.rs-sub, .rs-note { color: var(--rs-mute); font-size: .93rem; line-height: 1.45; }
.rs-note { font-size: .86rem; }
.rs-h { font-weight: 650; font-size: 1rem; }
.rs-kpi { display: grid; grid-template-columns: repeat(6, minmax(0, 1fr)); gap: 10px; }
.rs-kpi div { background: var(--rs-panel); border: 1px solid var(--rs-line); border-radius: 8px;
  padding: 8px 12px 9px; }
.rs-kpi span { display: block; color: var(--rs-mute); font-size: .84rem; }
.rs-kpi b { display: block; font-size: 1.3rem; font-weight: 650; line-height: 1.35; }
.rs-kpi b.none { color: var(--rs-mute); font-size: 1rem; font-weight: 500; line-height: 1.755; }
.rs-kpi small { display: block; color: var(--rs-mute); font-size: .84rem; line-height: 1.3; }
@media (max-width: 1100px) { .rs-kpi { grid-template-columns: repeat(3, minmax(0, 1fr)); } }
.rs-table { overflow-x: auto; }
.rs-table table { border-collapse: collapse; width: 100%; font-size: .89rem; }
.rs-table th { position: sticky; top: 0; background: var(--rs-panel); color: var(--rs-mute);
  font-weight: 500; text-align: right; padding: 4px 5px; border-bottom: 1px solid var(--rs-line);
  white-space: nowrap; }
.rs-table td { text-align: right; padding: 3px 5px; border-bottom: 1px solid var(--rs-line);
  white-space: nowrap; }
.rs-table .l { text-align: left; }
.rs-table td.w { width: 99%; max-width: 90px; overflow: hidden; text-overflow: ellipsis; }
.rs-table .no { color: var(--rs-mute); }
.rs-table tr.pick td { background: var(--rs-pick); font-weight: 600; color: var(--rs-ink); }
.rs-table tr:last-child td { border-bottom: 0; }
.rs-pair { display: grid; grid-template-columns: auto minmax(90px, auto); font-size: .92rem; }
.rs-pair span, .rs-pair b { padding: 3px 0; border-bottom: 1px solid var(--rs-line); font-weight: 500; }
.rs-pair span { color: var(--rs-mute); } .rs-pair b { text-align: right; }
.rs-pair > :nth-last-child(-n+2) { border-bottom: 0; }
.rs-pair b.none { color: var(--rs-mute); font-weight: 400; }
.rs-legend { display: flex; flex-wrap: wrap; gap: 4px 14px; color: var(--rs-mute); font-size: .86rem; }
.rs-legend span { display: inline-flex; align-items: center; }
.rs-legend i { display: inline-flex; width: 16px; height: 16px; border-radius: 3px; margin-right: 5px;
  align-items: center; justify-content: center; font: 600 .72rem/1 sans-serif; }
.rs-bar { display: inline-block; width: 18px; height: 9px; border-radius: 2px; background: var(--rs-accent);
  opacity: .75; }
.st-key-card-runs { padding: 12px 10px; }
.rs-state { border: 1px solid var(--rs-line); background: var(--rs-panel); border-radius: 8px;
  padding: 22px 24px; max-width: 720px; }
.rs-state b { font-size: 1.05rem; display: block; margin-bottom: 6px; }
.rs-state p { margin: 4px 0; color: var(--rs-mute); } .rs-state.bad { border-left: 3px solid var(--rs-warn); }
.rs-state code { color: var(--rs-ink); font-size: .92em; overflow-wrap: anywhere; }
.stApp [data-testid="stDownloadButton"] button[kind="tertiary"],
.stApp [class*="st-key-quiet"] button { font-size: .86rem; min-height: 1.5rem; padding: 0 .2rem; }
.stApp .st-key-actions { min-height: 2rem; }
.stApp .st-key-actions button { min-height: 1.8rem; padding: .1rem .7rem; font-size: .92rem; }
.stApp [class*="st-key-move"] button { min-height: 1.9rem; padding: .1rem .55rem; font-size: .88rem; }
.stApp [data-testid="stButtonGroup"] button { min-height: 1.85rem; padding: .1rem .6rem; font-size: .89rem; }
</style>
"""


def apply_style() -> None:
    """Put the page style in; once per rerun, before anything else is drawn."""
    st.html(_STYLE)


def current_theme() -> Theme:
    """The theme the browser shows."""
    return DARK if st.context.theme.type == "dark" else LIGHT


def strength(density: float) -> float:
    """0 at 1 % of the causal area, 1 at all of it, logarithmic: budgets double from one to the next."""
    return min(1.0, max(0.0, 1.0 + math.log10(max(density, 1e-4)) / 2.0))


def pattern_color(theme: Theme, pattern: str, density: float) -> str:
    """A cell's colour: the pattern's hue, paler where less is kept."""
    return blend(theme.panel, theme.patterns[pattern], 0.32 + 0.68 * strength(density))


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
            "colorway": [theme.accent, *theme.patterns.values()],
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
