"""Which keys the budgets of each family read, seen from the probe rows, at the resolution of a picture.

A level map (engine/method/records.py) seen from rows: for every probe row and cell of ``pool`` KV blocks the smallest
budget level that reads at least one key of the cell, before the tail override; level l of a family reads the cells with
``level <= l``. Two families share a byte, four bits each, because a run keeps one such map per head. Families stand in
the order of a run's candidates.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from routesparse.engine.rows import Pattern

NEVER = 15  # no budget of the family reads a key of the cell
MAX_COLUMNS = 256


def pack(levels: np.ndarray) -> np.ndarray:
    """uint8 [F, rows, columns], values up to NEVER -> uint8 [ceil(F / 2), rows, columns]."""
    padded = np.pad(levels, ((0, len(levels) % 2), (0, 0), (0, 0)), constant_values=NEVER)
    packed: np.ndarray = padded[0::2] | padded[1::2] << np.uint8(4)
    return packed


def unpack(packed: np.ndarray) -> np.ndarray:
    """The inverse of ``pack``; behind an odd number of families stands one that is never read."""
    levels = np.empty((2 * packed.shape[0], *packed.shape[1:]), np.uint8)
    levels[0::2], levels[1::2] = packed & np.uint8(15), packed >> np.uint8(4)
    return levels


def pooled(packed: np.ndarray, factor: int) -> np.ndarray:
    """``factor`` times fewer columns: a cell is read where any of its parts is."""
    starts = np.arange(0, packed.shape[-1], factor)
    return pack(np.minimum.reduceat(unpack(packed), starts, axis=-1))


def decode(stored: bytes, rows: int, columns: int, families: Sequence[Pattern]) -> dict[Pattern, np.ndarray]:
    """A bundle's bytes as one level map uint8 [rows, columns] per family.

    families: those of the run, in the order of its candidates. Errors: ValueError for bytes of another number.
    """
    packed = np.frombuffer(stored, np.uint8).reshape(-(-len(families) // 2), rows, columns)
    return dict(zip(families, unpack(packed), strict=False))
