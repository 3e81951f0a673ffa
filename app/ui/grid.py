"""A small grid of coloured cells with a text in each and a hover, for maps and matrices other than the routing map.

grid.js draws it: Plotly took longer to load than all else on a page.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import pandas as pd

from routesparse.app.ui import browser_part, design

_grid = browser_part.component(__file__, "grid")


@dataclass(frozen=True)
class Axis:
    """Labels along one side, and what they are."""

    title: str
    labels: list[str]


def drawing(
    cells: pd.DataFrame, rows: Axis, columns: Axis, theme: design.Theme, row_px: int, cell_px: int = 1
) -> dict[str, Any]:
    """What grid.js draws; a text that does not fit its cell keeps its first line, without decimals, and is left out
    where that does not help, but for its ▲ or, of several lines, the sign they begin with; places
    without a cell stay grey.

    cells: ``row``, ``column`` (places), ``color``, ``text``, ``strong``, ``hover``, and ``framed`` where some are.
    cell_px: the least width of a cell; where the page has less room, the grid scrolls sideways, from its end.
    """
    palette = list(dict.fromkeys(cells["color"]))
    place = {color: i for i, color in enumerate(palette)}
    names = ["row", "column", "color", "text", "strong", "hover"] + ["framed"] * ("framed" in cells)
    drawn = cells.assign(color=cells["color"].map(place))[names]
    return {
        "shape": [len(rows.labels), len(columns.labels)],
        "row_title": rows.title,
        "row_labels": rows.labels,
        "column_title": columns.title,
        "column_labels": columns.labels,
        "cells": drawn.to_numpy(object).tolist(),
        "palette": [(color, design.text_on(color)) for color in palette],
        "row_px": row_px,
        "cell_px": cell_px,
        "panel": theme.panel,
        "null": theme.null,
        "mute": theme.mute,
        "ink": theme.ink,
        "font": design.FONT,
    }


def by_head(rows: pd.DataFrame, shape: tuple[int, int], theme: design.Theme, **look: Any) -> dict[str, Any]:
    """A drawing with a row a layer and a column a head. rows: ``layer``, ``head``; look: the other columns."""
    cells = pd.DataFrame({"row": rows["layer"], "column": rows["head"], **look})
    layers, heads = (list(map(str, range(size))) for size in shape)
    height = 34 if shape[0] <= 12 else max(15, 520 // shape[0])  # so that 8 and 32 layers both fit a screen
    return drawing(cells, Axis("layer", layers), Axis("head", heads), theme, height)


def show(drawn: dict[str, Any], key: str, label: str, picks: bool = False) -> tuple[int, int] | None:
    """Draw it; (row, column) of the click or Enter that caused this rerun, where ``picks`` allows one.

    label: what screen readers call it.
    """
    found = _grid(key=key, data={**drawn, "label": label, "picks": picks}, on_picked_change=lambda: None)
    return None if found.picked is None else (int(found.picked[0]), int(found.picked[1]))


def diverging(value: float, largest: float, theme: design.Theme) -> str:
    """Blue below zero, rust above, pale near it: signs are also printed, colour is not the only channel."""
    share = min(1.0, abs(value) / largest) if largest > 0 else 0.0
    return design.blend(theme.panel, theme.warn if value > 0 else theme.accent, 0.06 + 0.84 * share)
