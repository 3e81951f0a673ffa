"""8-bit thumbnails of probe heatmaps: at most 64 x 128, max-pooled (a mean erases columns and slashes).

Probe rows are pooled in groups of neighbours by position, columns in groups of neighbours. A value v stands
for the mass ``scale * (v / 255)^2``: the square root keeps faint mass visible in eight bits.
"""

from __future__ import annotations

import itertools
from dataclasses import dataclass
from typing import Any

import numpy as np
import pyarrow as pa

MAX_ROWS = 64
MAX_COLUMNS = 128
KINDS = ("recent", "routing", "certificate", "boundary")


@dataclass(frozen=True)
class Thumbnail:
    """One pooled heatmap; ``kinds`` has bit k set where a row holds probe rows of kind k."""

    values: np.ndarray  # uint8 [rows, columns]
    scale: float
    positions: np.ndarray  # int32 [rows], last position of each group
    kinds: np.ndarray  # uint8 [rows]
    row_pool: int
    column_pool: int


def decode(values: bytes, rows: int, columns: int, scale: float) -> np.ndarray:
    """Mass as float32 [rows, columns] from a thumbnail's bytes."""
    stored = np.frombuffer(values, np.uint8).reshape(rows, columns).astype(np.float32)
    return np.square(stored / np.float32(255)) * np.float32(scale)


def full_mass(mass: bytes, rows: int, columns: int, scale: float) -> np.ndarray:
    """Mass as float32 [rows, columns] from a bundle's float16 bytes."""
    return np.frombuffer(mass, "<f2").reshape(rows, columns).astype(np.float32) * np.float32(scale)


def make(mass: bytes, rows: int, columns: int, scale: float, positions: bytes, kinds: bytes) -> Thumbnail:
    """The thumbnail of one probe row of the bundle."""
    full = np.frombuffer(mass, "<f2").reshape(rows, columns)
    row_pool, column_pool = -(-rows // MAX_ROWS), -(-columns // MAX_COLUMNS)
    row_starts, column_starts = np.arange(0, rows, row_pool), np.arange(0, columns, column_pool)
    # Rows first: most of the work is done before float16 becomes float32.
    pooled = np.maximum.reduceat(full.astype(np.float32), row_starts, axis=0) if row_pool > 1 else full
    if column_pool > 1:
        pooled = np.maximum.reduceat(pooled, column_starts, axis=1)
    pooled = np.nan_to_num(pooled.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    peak = float(pooled.max(initial=0.0))
    values = np.sqrt(np.clip(pooled, 0, None) / (peak or 1.0)) * 255
    last = np.append(row_starts[1:], rows) - 1
    return Thumbnail(
        values=np.rint(values).astype(np.uint8),
        scale=peak * scale,
        positions=np.frombuffer(positions, "<i4")[last],
        kinds=np.bitwise_or.reduceat(np.uint8(1) << np.frombuffer(kinds, np.uint8), row_starts),
        row_pool=row_pool,
        column_pool=column_pool,
    )


def probe_meta(probe: pa.Table) -> pa.Table:
    """The rows of table probe_meta (without run_key) for the rows of a bundle's probe table."""
    rows: list[dict[str, Any]] = []
    for row in itertools.chain.from_iterable(batch.to_pylist() for batch in probe.to_batches()):
        shape = row["rows"], row["columns"]
        thumb = make(row["mass"], *shape, row["scale"], row["positions"], row["kinds"])
        kept = ("batch_index", "layer", "head", "segment", "rows", "columns", "pool")
        rows.append(
            {
                **{name: row[name] for name in kept},
                "thumb_rows": thumb.values.shape[0],
                "thumb_columns": thumb.values.shape[1],
                "row_pool": thumb.row_pool,
                "column_pool": thumb.column_pool,
                "thumb_scale": thumb.scale,
                "thumb_positions": thumb.positions.astype("<i4").tobytes(),
                "thumb_kinds": thumb.kinds.tobytes(),
                "thumb": thumb.values.tobytes(),
            }
        )
    return pa.Table.from_pylist(rows)
