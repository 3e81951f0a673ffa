"""Fallbacks by layer as stacked bars, three kinds with a colour and a hatch each; beside them who ran uncertified."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, numbers, plot
from routesparse.engine.store import frames

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


def by_layer(layers: pd.DataFrame, measure: str, theme: design.Theme) -> dict[str, Any]:
    """layers: ``layer``, ``kind``, ``share``, ``units``, ``kernel_us``; measure: what the share is of, for the axis."""
    marks = []
    stacked: Counter[int] = Counter()
    for kind, color in colors(theme).items():
        at, told = [], []
        for row in frames.rows(layers[layers["kind"] == kind].dropna(subset=["share"])):
            bottom = stacked[row.layer]
            stacked[row.layer] += row.share
            at.append([row.layer - _WIDTH / 2, row.layer + _WIDTH / 2, bottom, bottom + row.share])
            part = f"{numbers.share(row.share)} of {measure}"
            units = f"{numbers.several(int(row.units), 'unit')}, predicted {numbers.micros(row.kernel_us)}"
            told.append([row.layer, kind, part, units])
        marks.append(plot.bars(at, color, "layer {0} · {1}\n{2}\n{3}", told, HATCHES[kind]))
    missed = layers.groupby("layer").agg(units=("uncertified", "sum"), of=("units", "sum"))
    missed = missed[missed["units"] > 0]
    if len(missed):
        # Uncertified is no fifth kind: an expanded unit may be one, so its bar stands beside the stack.
        start = missed.index + _WIDTH / 2
        beside = [start, start + _NARROW, np.zeros(len(missed)), missed["units"] / missed["of"]]
        told = [
            [row.layer, UNCERTIFIED, int(row.units), numbers.several(int(row.of), "unit")]
            for row in frames.rows(missed.reset_index())
        ]
        red = theme.levels["red"]
        marks.append(
            plot.bars(np.column_stack(beside).tolist(), red, "layer {0} · {1}\n{2} of {3}", told, "x")
        )
    first, last = int(layers["layer"].min()), int(layers["layer"].max())
    x_axis = plot.linear("layer", first - 0.5, last + 0.5, most=16, least_step=1)
    top = max([*stacked.values(), *(missed["units"] / missed["of"])], default=0.0)
    y_axis = plot.linear(f"share of {measure}", 0, top * 1.12 or 1.0, percent=True)
    return plot.chart(replace(x_axis, grid=False), y_axis, marks, 280, theme)


def legend(theme: design.Theme, limit: float, uncertified: bool) -> str:
    """HTML of the kinds, each with its colour and hatch; uncertified: whether any unit ran so.

    The limit is said and not drawn: it is for one of the kinds, by count, and for all layers together.
    """
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
    items.append(
        f"<span>limit for dense by fallback: {numbers.share(limit, 0)} of all layers’ units together</span>"
    )
    return f'<div class="rs-legend">{"".join(items)}</div>'
