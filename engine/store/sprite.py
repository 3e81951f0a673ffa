"""All probe thumbnails of one segment as one raster: a tile per (layer, head), max-pooled to at most 1024 x 1024.

One picture instead of a chart per head. Every tile is scaled to its own largest mass, so that shapes can be compared,
not amounts; the value v of a pixel stands for ``peak * (v / 255)^2`` as in thumbnail.py.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from routesparse.engine.store.owner_view import OwnerView

MAX_SIDE = 1_024


@dataclass(frozen=True)
class Sprite:
    """values uint8 [layers * height, heads * width]; a tile is known where its unit has a probe."""

    values: np.ndarray
    known: np.ndarray  # bool [layers, heads]
    height: int  # pixels of a tile
    width: int
    probe_rows: int
    row_pool: int  # probe rows in a pixel, at most
    block_pool: int  # key blocks in a pixel, at most


def probe_sprite(
    store: OwnerView, run_id: str, segment: int, batch_index: int, shape: tuple[int, int]
) -> Sprite | None:
    """The sprite of a (layers, heads) map; None where no probe was recorded."""
    found = store.rows(
        """
        SELECT layer, head, thumb, thumb_rows, thumb_columns, "rows", row_pool, column_pool * pool
        FROM probe_meta JOIN run USING (run_key) WHERE run_id = ? AND segment = ? AND batch_index = ?
        """,
        [run_id, segment, batch_index],
        of=[run_id],
    )
    if not found:
        return None
    layers, heads = shape
    rows, columns = max(row[3] for row in found), max(row[4] for row in found)
    height, width = min(rows, max(1, MAX_SIDE // layers)), min(columns, max(1, MAX_SIDE // heads))
    values = np.zeros((layers * height, heads * width), np.uint8)
    known = np.zeros(shape, bool)
    for layer, head, thumb, thumb_rows, thumb_columns, *_ in found:
        tile = np.frombuffer(thumb, np.uint8).reshape(thumb_rows, thumb_columns)
        # Where a thumbnail is smaller than the tile, starts repeat and its pixels do.
        tile = np.maximum.reduceat(tile, np.arange(height) * thumb_rows // height, axis=0)
        tile = np.maximum.reduceat(tile, np.arange(width) * thumb_columns // width, axis=1)
        values[layer * height : (layer + 1) * height, head * width : (head + 1) * width] = tile
        known[layer, head] = True
    first = found[0]
    return Sprite(
        values,
        known,
        height,
        width,
        probe_rows=first[5],
        row_pool=-(-rows // height) * first[6],
        block_pool=-(-columns // width) * first[7],
    )
