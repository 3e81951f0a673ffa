"""Keeping the table block_reads of a run within bounds: neighbouring KV blocks become one cell where there are many."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import replace

import numpy as np

from routesparse.engine.rows import BlockReadsRow

MOST_BYTES = 16_000_000  # of a run, before compression
_CELL_BYTES = 5  # reads, mass and lost


def within_bytes(
    run_id: str, rows: Sequence[BlockReadsRow], most: int = MOST_BYTES
) -> Iterator[BlockReadsRow]:
    """The rows of a run under its id; a cell is the least power of two of KV blocks that fits in ``most`` bytes."""
    factor = 1
    while factor < max((row.cells for row in rows), default=1) and (
        sum(-(-row.cells // factor) for row in rows) * _CELL_BYTES > most
    ):
        factor *= 2
    for row in rows:
        yield replace(pooled(row, factor), run_id=run_id)


def pooled(row: BlockReadsRow, factor: int) -> BlockReadsRow:
    """``factor`` times fewer cells: the mean share of reads, rounded up, and the sums of mass."""
    if factor == 1:
        return row
    starts = np.arange(0, row.cells, factor)
    sizes = np.diff(np.append(starts, row.cells))
    reads = np.add.reduceat(np.frombuffer(row.reads, np.uint8).astype(np.int64), starts)
    sums = (
        np.add.reduceat(np.frombuffer(part, "<f2").astype(float), starts) for part in (row.mass, row.lost)
    )
    mass, lost = (part.astype("<f2").tobytes() for part in sums)
    return replace(
        row,
        cells=len(starts),
        pool=row.pool * factor,
        reads=np.ceil(reads / sizes).astype(np.uint8).tobytes(),
        mass=mass,
        lost=lost,
    )
