"""The probe of one unit as a heatmap: block mass by probe row and key block, max-pooled where it is large."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design, numbers
from routesparse.app.unit import masks
from routesparse.app.unit.masks import Overlay
from routesparse.engine.store.queries import Heatmap
from routesparse.engine.store.thumbnail import KINDS

MAX_SIDE = 1024
_STOPS = 24


def limited(heatmap: Heatmap) -> Heatmap:
    """At most MAX_SIDE columns: neighbours max-pooled (a mean would erase columns and slashes), the factor kept."""
    step = -(-heatmap.mass.shape[1] // MAX_SIDE)
    if step == 1:
        return heatmap
    starts = np.arange(0, heatmap.mass.shape[1], step)
    mass = np.maximum.reduceat(heatmap.mass, starts, axis=1)
    return replace(heatmap, mass=mass, block_pool=heatmap.block_pool * step)


def figure(
    heatmap: Heatmap, theme: design.Theme, block_tokens: int, height: int, mask: Overlay | None = None
) -> go.Figure:
    """Colour is the square root of the mass, so that faint blocks show; a strip marks the rows' kinds."""
    rows, columns = heatmap.mass.shape
    cell = heatmap.block_pool * block_tokens
    start = heatmap.first_block * block_tokens
    end = start + columns * cell
    labels = _labels(heatmap)
    # Numbers only, no text per cell: a full probe stays near a megabyte on the wire.
    traces: list[dict[str, Any]] = [
        {
            "type": "heatmap",
            "z": heatmap.mass.astype(np.float32),
            "x0": start + cell / 2,
            "dx": cell,
            "y": labels,
            "colorscale": _square_root_scale(theme),
            "zmin": 0,
            "zmax": float(heatmap.mass.max(initial=0)) or 1,
            "showscale": False,
            "hovertemplate": f"row at token %{{y}}<br>{cell:,} keys around token %{{x:,}}"
            "<br>largest mass of a block %{z:.4f}<extra></extra>",
        }
    ]
    if mask is not None:
        paint = masks.lost_trace if mask.other is None else masks.trace
        traces.append(paint(mask, heatmap, labels, theme, block_tokens))
    width = (end - start) * 0.012
    for bit, color in enumerate(_kind_colors(theme)):
        at = [label for label, kind in zip(labels, heatmap.kinds, strict=True) if kind >> bit & 1]
        size = max(2, min(4, (height - 46) // rows))
        traces.append(
            {
                "type": "scatter",
                "x": [start - width * (5 - bit)] * len(at),
                "y": at,
                "mode": "markers",
                "marker": {"symbol": "square", "size": size, "color": color},
                "hoverinfo": "skip",
            }
        )
    return design.chart(
        theme,
        traces,
        yaxis={
            "type": "category",
            "categoryorder": "array",
            "categoryarray": labels,
            "range": [rows - 0.5, -0.5],
            "showticklabels": False,
            "ticks": "",
            "title": {"text": "probe row", "standoff": 2},
            "showgrid": False,
            "zeroline": False,
        },
        xaxis={
            "range": [start - width * 6, end],
            "showgrid": False,
            "zeroline": False,
            "nticks": 5,
            "tickformat": ",",
            "title": {"text": "key token"},
        },
        height=height,
        showlegend=False,
        margin={"l": 20, "r": 6, "t": 4, "b": 38},
    )


def ring_row(picture: go.Figure, heatmap: Heatmap, position: int | None, theme: design.Theme) -> None:
    """Frame the row at this token, where it is in the picture."""
    found = np.flatnonzero(heatmap.positions == position)
    if position is not None and len(found):
        place = {"xref": "paper", "x0": 0, "x1": 1, "y0": float(found[0]) - 0.9, "y1": float(found[0]) + 0.9}
        picture.update_layout(
            shapes=[{"type": "rect", "name": "picked", **place, "line": {"color": theme.warn, "width": 1.5}}],
            overwrite=False,
        )


def legend(heatmap: Heatmap, theme: design.Theme, mask: Overlay | None = None) -> str:
    """HTML: which strip is which kind of row, how much was pooled, and what the overlay means."""
    kinds = [
        (color, name)
        for name, color in zip(KINDS, _kind_colors(theme), strict=True)
        if (heatmap.kinds >> KINDS.index(name) & 1).any()
    ]
    tints = masks.legend_items(mask, heatmap, theme) if mask is not None else []
    marks = "".join(
        f'<span><i style="background:{color};width:9px;height:9px"></i>{escape(words)}</span>'
        for color, words in [*kinds, *tints]
    )
    blocks = numbers.several(heatmap.block_pool, "key block")
    rows = "one row" if heatmap.row_pool == 1 else f"{heatmap.row_pool} rows"
    return f'<div class="rs-legend">{marks}<span>a cell: max over {rows} × {blocks}</span></div>'


def long_rows(heatmap: Heatmap) -> pd.DataFrame:
    """The heatmap as long rows for export."""
    rows, columns = heatmap.mass.shape
    return pd.DataFrame(
        {
            "row_token": np.repeat(heatmap.positions, columns),
            "row_kinds": np.repeat(heatmap.kinds, columns),
            "key_block": np.tile(heatmap.first_block + np.arange(columns) * heatmap.block_pool, rows),
            "mass": heatmap.mass.ravel(),
        }
    )


def _labels(heatmap: Heatmap) -> list[str]:
    """Position and kinds of every row; certificate rows may repeat a position, a category may not."""
    seen: Counter[str] = Counter()
    labels = []
    for position, kind in zip(heatmap.positions, heatmap.kinds, strict=True):
        names = " and ".join(name for bit, name in enumerate(KINDS) if kind >> bit & 1)
        label = f"{position:,} ({names})"
        seen[label] += 1
        labels.append(label if seen[label] == 1 else f"{label}, drawn again {seen[label] - 1}")
    return labels


def mass_color(theme: design.Theme, share: float) -> str:
    """The colour of a mass whose square root is ``share`` of the peak's; nothing is the panel itself."""
    if share < 0.12:
        return design.blend(theme.panel, theme.scale[0], share / 0.12)
    return design.scale_color(theme, share)


def _square_root_scale(theme: design.Theme) -> list[list[object]]:
    """The sequential scale over the square root of the value."""
    return [[float(s**2), mass_color(theme, float(s))] for s in np.linspace(0, 1, _STOPS)]


def _kind_colors(theme: design.Theme) -> tuple[str, ...]:
    """Not the patterns' hues: these mean kinds of rows."""
    return theme.accent, theme.ink, theme.mute, theme.warn
