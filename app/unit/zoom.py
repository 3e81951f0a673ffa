"""Zooming into a probe: the window lives in the address, and its part of the picture comes at the stored resolution.

The whole picture is pooled to what a screen shows; dragging a box over it asks for that part again, a double click for
the whole, and a click names a row.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, replace
from typing import Any

import streamlit as st

from routesparse.app.shell import address, view
from routesparse.app.ui import plot
from routesparse.engine.store.queries import Heatmap


@dataclass(frozen=True)
class Window:
    """Key blocks [first_block, end_block) and stored probe rows [first_row, end_row)."""

    first_block: int
    end_block: int
    first_row: int
    end_row: int


def wanted() -> Window | None:
    """The window of the address, ``zoom=first_block,end_block,first_row,end_row``; None for the whole picture."""
    text = st.query_params.get("zoom", "")
    parts = text.split(",")
    if len(parts) == 4 and all(part.isascii() and part.isdigit() and len(part) < 10 for part in parts):
        found = Window(*(int(part) for part in parts))
        if found.first_block < found.end_block and found.first_row < found.end_row:
            return found
    address.absent("zoom", text)
    return None


def cut(heatmap: Heatmap, window: Window) -> Heatmap | None:
    """The part of a heatmap of stored rows inside the window; None where the two have nothing in common.

    Rounded outwards to whole columns, of the masks too where there are some: they are never finer than the mass.
    """
    grain = heatmap.block_pool if heatmap.levels is None else math.lcm(heatmap.mask_pool, heatmap.block_pool)
    first, end = window.first_block // grain * grain, -(-window.end_block // grain) * grain
    rows = slice(window.first_row, window.end_row)
    columns = slice(first // heatmap.block_pool, end // heatmap.block_pool)
    mass = heatmap.mass[rows, columns]
    if not mass.size:
        return None
    levels = heatmap.levels
    if levels is not None:
        parts = slice(first // heatmap.mask_pool, end // heatmap.mask_pool)
        levels = {family: kept[rows, parts] for family, kept in levels.items()}
    return replace(
        heatmap,
        mass=mass,
        positions=heatmap.positions[rows],
        kinds=heatmap.kinds[rows],
        levels=levels,
        first_block=first,
        first_row=window.first_row,
    )


def show(key: str, picture: dict[str, Any], shown: Heatmap, block_tokens: int) -> None:
    """Draw the picture of ``shown`` and follow what the visitor does on it."""
    plot.show(
        picture,
        key,
        f"Probe, {shown.mass.shape[0]} rows by {shown.mass.shape[1]} columns of key blocks",
        on_row=lambda row: take_row(row, shown),
        on_window=lambda ranges: take(ranges, shown, block_tokens),
    )


def back() -> None:
    """Show the whole picture again."""
    st.query_params.pop("zoom", None)


def window_of(ranges: list[float], shown: Heatmap, block_tokens: int) -> Window:
    """The window of the chart's axes: [x0, x1] in tokens, [y0, y1] in drawn rows (row i from i - .5 to i + .5)."""
    x0, x1, y0, y1 = (*sorted(ranges[:2]), *sorted(ranges[2:]))
    first_block = max(0, math.floor(x0 / block_tokens))
    first_row = shown.first_row + max(0, math.floor(y0 + 0.5)) * shown.row_pool
    return Window(
        first_block,
        max(first_block + 1, math.ceil(x1 / block_tokens)),
        first_row,
        max(first_row + shown.row_pool, shown.first_row + math.ceil(y1 + 0.5) * shown.row_pool),
    )


def _is_box(ranges: object) -> bool:
    """Whether a browser's message holds four numbers."""
    return (
        isinstance(ranges, list)
        and len(ranges) == 4
        and all(isinstance(value, int | float) and math.isfinite(value) for value in ranges)
    )


def take_row(row: object, shown: Heatmap) -> None:
    """The clicked row becomes part of the address, by its token."""
    if isinstance(row, int | float) and 0 <= row < len(shown.positions) and shown.row_pool == 1:
        view.write(row=int(shown.positions[int(row)]))


def take(ranges: list[float] | None, shown: Heatmap, block_tokens: int) -> None:
    if ranges is None:
        return
    if not ranges:
        back()
        return
    if not _is_box(ranges):
        return
    window = window_of(ranges, shown, block_tokens)
    view.write(zoom=f"{window.first_block},{window.end_block},{window.first_row},{window.end_row}")
