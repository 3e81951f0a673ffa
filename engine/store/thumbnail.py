"""8-bit thumbnails of probe heatmaps: at most 64 x 128, max-pooled (a mean erases columns and slashes).

Probe rows are pooled in groups of neighbours by position, columns in groups of neighbours. A value v stands
for the mass ``scale * (v / 255)^2``: the square root keeps faint mass visible in eight bits.
"""

from __future__ import annotations

import itertools
from typing import Any

import numpy as np
import pyarrow as pa

MAX_ROWS = 64
MAX_COLUMNS = 128
KINDS = ("recent", "routing", "certificate", "boundary")


def decode(values: bytes, rows: int, columns: int, scale: float) -> np.ndarray:
    """Mass as float32 [rows, columns] from a thumbnail's bytes."""
    stored = np.frombuffer(values, np.uint8).reshape(rows, columns).astype(np.float32)
    return np.square(stored / np.float32(255)) * np.float32(scale)


def full_mass(mass: bytes, rows: int, columns: int, scale: float) -> np.ndarray:
    """Mass as float32 [rows, columns] from a bundle's float16 bytes."""
    return np.frombuffer(mass, "<f2").reshape(rows, columns).astype(np.float32) * np.float32(scale)


def of_probe(row: dict[str, Any]) -> dict[str, Any]:
    """The row of table probe_meta (without run_key) for a row of a bundle's probe table."""
    rows, columns = row["rows"], row["columns"]
    full = np.frombuffer(row["mass"], "<f2").reshape(rows, columns)
    row_pool, column_pool = -(-rows // MAX_ROWS), -(-columns // MAX_COLUMNS)
    row_starts, column_starts = np.arange(0, rows, row_pool), np.arange(0, columns, column_pool)
    # Rows first: most of the work is done before float16 becomes float32.
    pooled = np.maximum.reduceat(full.astype(np.float32), row_starts, axis=0) if row_pool > 1 else full
    if column_pool > 1:
        pooled = np.maximum.reduceat(pooled, column_starts, axis=1)
    pooled = np.nan_to_num(pooled.astype(np.float32), nan=0.0, posinf=0.0, neginf=0.0)
    peak = float(pooled.max(initial=0.0))
    values = np.rint(np.sqrt(np.clip(pooled, 0, None) / (peak or 1.0)) * 255).astype(np.uint8)
    last = np.append(row_starts[1:], rows) - 1
    kinds = np.bitwise_or.reduceat(np.uint8(1) << np.frombuffer(row["kinds"], np.uint8), row_starts)
    return {
        **{
            name: row[name] for name in ("batch_index", "layer", "head", "segment", "rows", "columns", "pool")
        },
        "thumb_rows": values.shape[0],
        "thumb_columns": values.shape[1],
        "row_pool": row_pool,
        "column_pool": column_pool,
        "thumb_scale": peak * row["scale"],
        "thumb_positions": np.frombuffer(row["positions"], "<i4")[last].tobytes(),  # the last of each group
        "thumb_kinds": kinds.tobytes(),  # bit k: the row holds probe rows of kind k
        "thumb": values.tobytes(),
    }


def probe_meta(probe: pa.Table) -> pa.Table:
    """The rows of table probe_meta for a bundle's probe table."""
    rows = itertools.chain.from_iterable(batch.to_pylist() for batch in probe.to_batches())
    return pa.Table.from_pylist([of_probe(row) for row in rows])
