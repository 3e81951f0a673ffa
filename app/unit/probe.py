"""The probe of one unit as a heatmap: block mass by probe row and key block, max-pooled where it is large."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace
from html import escape
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, numbers, plot
from routesparse.app.unit import masks
from routesparse.app.unit.masks import Mask
from routesparse.engine.store.queries import Heatmap
from routesparse.engine.store.thumbnail import KINDS

MAX_SIDE = 1024


def limited(heatmap: Heatmap) -> Heatmap:
    """At most MAX_SIDE columns: neighbours max-pooled (a mean would erase columns and slashes), the factor kept."""
    step = -(-heatmap.mass.shape[1] // MAX_SIDE)
    if step == 1:
        return heatmap
    starts = np.arange(0, heatmap.mass.shape[1], step)
    mass = np.maximum.reduceat(heatmap.mass, starts, axis=1)
    return replace(heatmap, mass=mass, block_pool=heatmap.block_pool * step)


def figure(
    heatmap: Heatmap,
    theme: design.Theme,
    block_tokens: int,
    height: int,
    mask: Mask | None = None,
    position: int | None = None,
) -> dict[str, Any]:
    """Colour is the square root of the mass, so that faint blocks show; a strip marks the rows' kinds.

    position: of the row to frame, where it is in the picture.
    """
    rows, columns = heatmap.mass.shape
    cell = heatmap.block_pool * block_tokens
    start = heatmap.first_block * block_tokens
    end = start + columns * cell
    # Numbers only, no text per cell: a full probe stays near half a megabyte on the wire.
    hover = f"row at token {{0}}\n{cell:,} keys around token {{1}}\nlargest mass of a block {{2}}"
    colors = [mass_color(theme, i / 255) for i in range(256)]
    box = (start, end, -0.5, rows - 0.5)
    marks = [plot.cells(heatmap.mass, box, colors, hover, _labels(heatmap))]
    if mask is not None:
        marks.append(masks.lost_cover(mask, heatmap, theme, block_tokens))
    width = (end - start) * 0.012
    size = max(2, min(4, (height - 46) // rows))
    for bit, color in enumerate(_kind_colors(theme)):
        at = np.flatnonzero(heatmap.kinds >> bit & 1).tolist()
        place = [start - width * (5 - bit)] * len(at)
        marks.append(plot.points(place, at, color, "", [], "square", size))
    x_axis = plot.linear("key token", start - width * 6, end)
    # Left of the first key are the strips.
    ticks = [(value, text) for value, text in x_axis.ticks if value >= start]
    x_axis = replace(x_axis, ticks=ticks, grid=False)
    y_axis = plot.Axis("probe row", (rows - 0.5, -0.5), [])
    found = np.flatnonzero(heatmap.positions == position)
    if position is not None and len(found):
        top, bottom, (left, right) = found[0] - 0.9, found[0] + 0.9, x_axis.range
        around = ([left, right, right, left, left], [top, top, bottom, bottom, top])
        marks.append(plot.line(*around, theme.warn, 1.5, ring=True))
    return plot.chart(x_axis, y_axis, marks, height, theme, top=4)


def legend(heatmap: Heatmap, theme: design.Theme, mask: Mask | None = None, is_part: bool = False) -> str:
    """HTML: which strip is which kind of row, how much was pooled, and what the overlay means."""
    kinds = [
        (color, name)
        for name, color in zip(KINDS, _kind_colors(theme), strict=True)
        if (heatmap.kinds >> KINDS.index(name) & 1).any()
    ]
    tints = masks.legend_items(heatmap, theme) if mask is not None else []
    marks = "".join(
        f'<span><i style="background:{color};width:9px;height:9px"></i>{escape(words)}</span>'
        for color, words in [*kinds, *tints]
    )
    blocks = numbers.several(heatmap.block_pool, "key block")
    rows = "" if heatmap.row_pool == 1 else f"{heatmap.row_pool} rows × "
    most = numbers.mass(float(heatmap.mass.max(initial=0)))
    stops = ", ".join(mass_color(theme, share) for share in (0, 0.12, 0.3, 0.5, 0.75, 1))
    bar = f'<i style="width:70px;margin:0 6px;background:linear-gradient(90deg,{stops})"></i>'
    whose = "of this part: colours rescaled to it" if is_part else "here"
    scale = f"<span>0 {bar} {most}, the largest mass {whose}</span>"
    return f'<div class="rs-legend">{marks}<span>a cell: max over {rows}{blocks}</span>{scale}</div>'


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


def _kind_colors(theme: design.Theme) -> tuple[str, ...]:
    """Not the patterns' hues: these mean kinds of rows."""
    return theme.accent, theme.ink, theme.mute, theme.warn
