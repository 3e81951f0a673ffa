"""What one candidate reads, over a probe heatmap."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, plot
from routesparse.engine.store import frames
from routesparse.engine.store.queries import Heatmap


@dataclass(frozen=True)
class Mask:
    """What a candidate reads: bool [rows, mask columns], and what no row may read, the keys after itself, as read."""

    cells: np.ndarray
    name: str
    candidate: int


def candidate_name(row: Any) -> str:
    """A candidate as its letter and budget."""
    return f"{design.letter(row.pattern)} · {row.budget}"


def mask(heatmap: Heatmap, candidates: pd.DataFrame, block: int, candidate: int) -> Mask:
    """Of a heatmap with levels; block: tokens in a KV block."""
    cells = reads(heatmap, candidates, candidate)
    starts = (heatmap.first_block + np.arange(cells.shape[1]) * heatmap.mask_pool) * block
    names = {row.candidate: candidate_name(row) for row in frames.rows(candidates)}
    return Mask(cells | (starts > heatmap.positions[:, None]), names[candidate], candidate)


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


def lost_cover(shown: Mask, heatmap: Heatmap, theme: design.Theme, block: int) -> plot.Mark:
    """Clear where the candidate reads, from grey to orange the attention that it does not."""
    peak = float(heatmap.mass.max(initial=0)) or 1.0
    # Square roots, as in the picture below.
    lost = np.clip(np.sqrt(np.clip(heatmap.mass, 0, None) / peak) * 255, 1, 255)
    painted = np.where(cells_read(heatmap, shown.cells), 0, lost)
    tints = [design.blend(theme.null, theme.warn, i / 254) for i in range(255)]
    start, (rows, columns) = heatmap.first_block * block, painted.shape
    box = (start, start + columns * heatmap.block_pool * block, -0.5, rows - 0.5)
    return plot.cover(painted, box, ["#00000000", *tints], ["", f"not read: {shown.name}"])


def legend_items(heatmap: Heatmap, theme: design.Theme) -> list[tuple[str, str]]:
    """(colour, words) of what the cover means."""
    told = "not read" if heatmap.mask_pool == 1 else f"no key of {heatmap.mask_pool} key blocks is read"
    return [(theme.null, f"grey: {told}"), (theme.warn, "orange: attention lost there")]
