"""The mask of one candidate, or the difference of two, over a probe heatmap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, plot
from routesparse.engine.store import frames
from routesparse.engine.store.queries import Heatmap

NEITHER, BOTH, ONE, OTHER = range(4)
_CLEAR = "#00000000"


@dataclass(frozen=True)
class Overlay:
    """cells uint8 [rows, mask columns]: NEITHER, BOTH, ONE (the first alone) or OTHER; names and numbers of the
    candidates."""

    cells: np.ndarray
    one: str
    other: str | None
    candidates: tuple[int, int | None]


def candidate_name(row: Any) -> str:
    """A candidate as its letter and budget."""
    return f"{design.letter(row.pattern)} · {row.budget}"


def overlay(
    heatmap: Heatmap, candidates: pd.DataFrame, block: int, one: int, other: int | None
) -> Overlay | None:
    """What candidate ``one`` reads, against ``other`` where given; None where the run recorded no masks.

    block: tokens in a KV block.
    """
    if heatmap.levels is None:
        return None
    first = reads(heatmap, candidates, one)
    second = first if other is None else reads(heatmap, candidates, other)
    cells = np.full(first.shape, NEITHER, np.uint8)
    cells[first & second], cells[first & ~second], cells[~first & second] = BOTH, ONE, OTHER
    # No row may read keys after itself: those cells stay clear.
    starts = (heatmap.first_block + np.arange(first.shape[1]) * heatmap.mask_pool) * block
    cells[starts > heatmap.positions[:, None]] = BOTH
    names = {row.candidate: candidate_name(row) for row in frames.rows(candidates)}
    return Overlay(cells, names[one], None if other is None else names[other], (one, other))


def reads(heatmap: Heatmap, candidates: pd.DataFrame, candidate: int) -> np.ndarray:
    """bool [rows, mask columns]: what a candidate reads, of a heatmap with levels.

    A family's budgets are numbered by their order in the library.
    """
    assert heatmap.levels is not None
    ordered = candidates.sort_values("candidate")
    level = ordered.groupby("pattern").cumcount()[ordered["candidate"] == candidate].iloc[0]
    pattern = ordered.loc[ordered["candidate"] == candidate, "pattern"].iloc[0]
    if pattern == "dense":
        return np.ones(next(iter(heatmap.levels.values())).shape, bool)
    return heatmap.levels[pattern] <= level


def cells_read(heatmap: Heatmap, kept: np.ndarray) -> np.ndarray:
    """``kept`` bool [rows, mask columns] in the columns of the heatmap's mass."""
    column = np.arange(heatmap.mass.shape[1]) * heatmap.block_pool // heatmap.mask_pool
    wide: np.ndarray = kept[:, np.minimum(column, kept.shape[1] - 1)]
    return wide


def lost_cover(shown: Overlay, heatmap: Heatmap, theme: design.Theme, block: int) -> plot.Mark:
    """Over one candidate's reads: clear where read, from grey to orange the attention that is not."""
    peak = float(heatmap.mass.max(initial=0)) or 1.0
    # Square roots, as in the picture below.
    lost = np.clip(np.sqrt(np.clip(heatmap.mass, 0, None) / peak) * 255, 1, 255)
    painted = np.where(cells_read(heatmap, shown.cells != NEITHER), 0, lost)
    tints = [design.blend(theme.null, theme.warn, i / 254) for i in range(255)]
    box = _box(painted, heatmap, heatmap.block_pool * block, block)
    return plot.cover(painted, box, [_CLEAR, *tints], ["", f"not read: {shown.one}"])


def tint_cover(shown: Overlay, heatmap: Heatmap, theme: design.Theme, block: int) -> plot.Mark:
    """Over two candidates' reads: clear where both read, grey where neither, tinted where only one does."""
    tints = [f"{color}80" for color in theme.hues[:2]]
    box = _box(shown.cells, heatmap, heatmap.mask_pool * block, block)
    names = ["read by neither", "", f"only {shown.one}", f"only {shown.other}"]
    return plot.cover(shown.cells, box, [f"{theme.null}cc", _CLEAR, *tints], names)


def _box(cells: np.ndarray, heatmap: Heatmap, step: int, block: int) -> tuple[float, float, float, float]:
    """Where cells of ``step`` tokens lie on the probe's axes."""
    start, (rows, columns) = heatmap.first_block * block, cells.shape
    return start, start + columns * step, -0.5, rows - 0.5


def legend_items(shown: Overlay, heatmap: Heatmap, theme: design.Theme) -> list[tuple[str, str]]:
    """(colour, words) of what the overlay means."""
    cell = "a cell" if heatmap.mask_pool == 1 else f"a cell of {heatmap.mask_pool} key blocks"
    if shown.other is None:
        return [
            (theme.null, f"grey: {shown.one} reads no key of {cell}"),
            (theme.warn, "orange: nor does it read this attention, which is lost"),
        ]
    return [
        (theme.hues[0], f"only {shown.one}"),
        (theme.hues[1], f"only {shown.other}"),
        (theme.null, f"grey: neither reads a key of {cell}"),
    ]
