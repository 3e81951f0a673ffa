"""The layer x head figure: cells, letters, fallback marks, click targets."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import pandas as pd
import plotly.graph_objects as go
from plotly.subplots import make_subplots

from routesparse.app import design, map_times, numbers

FALLBACK_STEPS = ("none", "dense by the router", "expanded", "dense by fallback")
_FORMATS = {
    "density": ("share of the causal area kept", numbers.share),
    "mass": ("mean retained mass over the routing rows", numbers.mass),
    "lower_mass": ("in-prompt certificate of the body's mean mass", numbers.mass),
    "disagreement": ("standard deviation u of the row groups' means", numbers.mass),
    "risk": ("risk R of equation 4", numbers.mass),
    "entropy": ("entropy in nats, mean over the probe rows", lambda v: numbers.mass(v, 2)),
    "audited_error": ("relative output error, mean over the audited rows", lambda v: numbers.mass(v, 4)),
}


@dataclass(frozen=True)
class Cells:
    """Colours of all cells, row by row, and what the colour means."""

    colors: np.ndarray  # object [layers, heads], #rrggbb
    values: np.ndarray | None  # float [layers, heads]; None for the pattern
    unit: str
    low: float
    high: float


def cells(choices: pd.DataFrame, metric: str, theme: design.Theme, layers: int, heads: int) -> Cells:
    """The colour of every (layer, head); grey where the metric was not measured."""
    colors = np.full((layers, heads), theme.null, object)
    at = choices["layer"].to_numpy(), choices["head"].to_numpy()
    if metric == "pattern":
        for layer, head, pattern, density in zip(*at, choices["pattern"], choices["density"], strict=True):
            colors[layer, head] = design.pattern_color(theme, pattern, density)
        return Cells(colors, None, "pattern, stronger where more is kept", 0, 1)
    values = np.full((layers, heads), np.nan)
    if metric == "fallback":
        values[at] = [
            _fallback_step(p, f) for p, f in zip(choices["pattern"], choices["fallback"], strict=True)
        ]
        unit, low, high = "fallback of the unit", 0.0, 3.0
    else:
        values[at] = choices[metric].astype(float)
        unit = _FORMATS[metric][0]
        known = values[~np.isnan(values)]
        low, high = (float(known.min()), float(known.max())) if known.size else (0.0, 1.0)
    spread = (high - low) or 1.0
    for layer, head in np.argwhere(~np.isnan(values)):
        colors[layer, head] = design.scale_color(theme, (values[layer, head] - low) / spread)
    return Cells(colors, values, unit, low, high)


def value_text(metric: str, value: float) -> str:
    """A metric's value as printed in cells, legends and hovers."""
    if metric == "fallback":
        return FALLBACK_STEPS[int(value)]
    return _FORMATS[metric][1](value)


def figure(
    choices: pd.DataFrame,
    layer_rows: pd.DataFrame,
    metric: str,
    picked: tuple[int, int],
    theme: design.Theme,
    shape: tuple[int, int],
) -> tuple[go.Figure, Cells]:
    """The map of one segment and, per layer, measured and planned time against T_l."""
    layers, heads = shape
    shown = cells(choices, metric, theme, layers, heads)
    row_px = 44 if layers <= 12 else max(17, 560 // layers)
    chart = make_subplots(1, 2, column_widths=[0.76, 0.24], shared_yaxes=True, horizontal_spacing=0.025)
    _draw_cells(chart, shown, layers, heads)
    _draw_letters(chart, choices, shown, metric, heads, row_px)
    _draw_fallback_marks(chart, choices, shown, row_px)
    _draw_click_targets(chart, choices, metric, row_px)
    map_times.draw_times(chart, layer_rows, theme, row_px)
    layer, head = picked
    chart.add_shape(
        type="rect",
        x0=head - 0.475,
        x1=head + 0.475,
        y0=layer - 0.46,
        y1=layer + 0.46,
        line={"color": theme.ink, "width": 2.2},
        row=1,
        col=1,
    )
    step = 1 if heads <= 16 else 4
    chart.update_xaxes(
        side="top",
        range=[-0.5, heads - 0.5],
        tickvals=list(range(0, heads, step)),
        showgrid=False,
        zeroline=False,
        fixedrange=True,
        ticks="",
        row=1,
        col=1,
    )
    chart.update_yaxes(
        range=[layers - 0.5, -0.5],
        tickvals=list(range(0, layers, 1 if layers <= 16 else 4)),
        showgrid=False,
        zeroline=False,
        fixedrange=True,
        ticks="",
    )
    chart.update_layout(
        template=design.template(theme),
        height=row_px * layers + 28,
        margin={"l": 24, "r": 6, "t": 24, "b": 4},
        showlegend=False,
        hovermode="closest",
        hoverdistance=60,
        dragmode=False,
        bargap=0.55,
        barcornerradius=3,
        uirevision="map",
    )
    return chart, shown


def _draw_cells(chart: go.Figure, shown: Cells, layers: int, heads: int) -> None:
    """One heatmap whose colour scale has a step per cell: any colour in any cell."""
    flat = shown.colors.ravel()
    palette = list(dict.fromkeys(flat))
    index = {color: i for i, color in enumerate(palette)}
    count = len(palette)
    scale = [[(i + edge) / count, color] for i, color in enumerate(palette) for edge in (0, 1)]
    chart.add_heatmap(
        z=np.array([index[c] + 0.5 for c in flat]).reshape(layers, heads),
        x=list(range(heads)),
        y=list(range(layers)),
        zmin=0,
        zmax=count,
        colorscale=scale,
        showscale=False,
        xgap=4 if heads <= 16 else 1.5,
        ygap=4 if layers <= 16 else 1.5,
        hoverinfo="skip",
        row=1,
        col=1,
    )


def _draw_letters(
    chart: go.Figure, choices: pd.DataFrame, shown: Cells, metric: str, heads: int, row_px: int
) -> None:
    """A letter in every cell, and the value below it where there is room; one trace per ink."""
    inks: dict[str, list[tuple[int, int, str]]] = {}
    for layer, head, pattern in zip(choices["layer"], choices["head"], choices["pattern"], strict=True):
        text = f"<b>{design.LETTERS[pattern]}</b>"
        if shown.values is not None and heads <= 12 and row_px >= 40 and metric != "fallback":
            value = shown.values[layer, head]
            text += "<br>" + ("–" if np.isnan(value) else value_text(metric, value))
        inks.setdefault(design.text_on(shown.colors[layer, head]), []).append((head, layer, text))
    for ink, points in inks.items():
        font = {"color": ink, "size": 13 if row_px >= 40 else 10}
        chart.add_scatter(
            x=[p[0] for p in points],
            y=[p[1] for p in points],
            text=[p[2] for p in points],
            mode="text",
            textfont=font,
            selected={"textfont": {"color": ink}},
            unselected={"textfont": {"color": ink}},
            hoverinfo="skip",
            row=1,
            col=1,
        )


def _draw_fallback_marks(chart: go.Figure, choices: pd.DataFrame, shown: Cells, row_px: int) -> None:
    """A square for dense by fallback, a triangle for expanded, in the upper right corner of the cell."""
    size = 6 if row_px >= 40 else 4
    for kind, symbol in (("dense", "square"), ("expand", "triangle-up")):
        units = choices[choices["fallback"] == kind]
        if units.empty:
            continue
        at = zip(units["layer"], units["head"], strict=True)
        chart.add_scatter(
            x=units["head"] + 0.36,
            y=units["layer"] - 0.29,
            mode="markers",
            marker={"symbol": symbol, "size": size, "color": [design.text_on(shown.colors[p]) for p in at]},
            selected={"marker": {"opacity": 1}},
            unselected={"marker": {"opacity": 1}},
            hoverinfo="skip",
            row=1,
            col=1,
        )


def _draw_click_targets(chart: go.Figure, choices: pd.DataFrame, metric: str, row_px: int) -> None:
    """Invisible squares that take the click: a heatmap's own selection comes back empty."""
    lines = []
    for row in choices.itertuples():
        text = (
            f"<b>layer {row.layer}, head {row.head}</b> · {design.NAMES[row.pattern]}"
            f"<br>keeps {numbers.share(row.density)} of the body's causal area"
            f"<br>mass {numbers.mass(row.mass)} · certified {numbers.mass(row.lower_mass)}"
            f"<br>planned {numbers.micros(row.kernel_us)}"
        )
        if metric not in ("pattern", "density", "mass", "lower_mass", "fallback"):
            text += f"<br>{metric.replace('_', ' ')} {value_text(metric, getattr(row, metric))}"
        if row.fallback in ("dense", "expand"):
            text += "<br>" + ("dense by fallback" if row.fallback == "dense" else "expanded by fallback")
        lines.append(text)
    chart.add_scatter(
        x=choices["head"],
        y=choices["layer"],
        mode="markers",
        marker={"symbol": "square", "size": row_px - 6, "opacity": 0},
        selected={"marker": {"opacity": 0}},
        unselected={"marker": {"opacity": 0}},
        customdata=choices[["layer", "head"]].to_numpy(),
        text=lines,
        hovertemplate="%{text}<extra></extra>",
        name="units",
        row=1,
        col=1,
    )


def _fallback_step(pattern: str, fallback: object) -> float:
    if fallback == "dense":
        return 3.0
    if fallback == "expand":
        return 2.0
    return 1.0 if pattern == "dense" else 0.0
