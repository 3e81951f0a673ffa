"""Shape: where a head's attention lies, whatever family the router chose (the paper's sec. 3.1 names the patterns).

Of probe rows r with own cell c_r and mass a_rj on the cells j of a prompt (a cell is some KV blocks):

    sink       j = 0
    local      j = c_r or c_r - 1, and not the sink
    vertical   of the rest, cells j that at least half of the later rows read
    slash      of what remains, distances c_r - j that at least half of the rows far enough behind read
    scattered  what remains

A row *reads* a cell of the rest where the cell holds more than twice an even share of the row's mass on the rest; of a
mask, where the mask does. A share is the mean over rows of the mass there, each row's sum being 1.
"""

from __future__ import annotations

import numpy as np

PARTS = ("sink", "local", "vertical", "slash", "scattered")
KINDS = (*PARTS, "dense")
_STANDS_OUT = 2.0  # times an even share
_FEWEST_ROWS = 5  # that a column or distance is judged by
_UNITS_AT_ONCE = 64


def shares(mass: np.ndarray, own: np.ndarray, read: np.ndarray | None = None) -> np.ndarray:
    """float [units, 5], in the order of PARTS; NaN for a unit without a finite row that holds any mass.

    mass [units, rows, cells], at least 0; own int [units, rows]: each row's own cell; read bool, as mass: a mask's.
    """
    some = [slice(i, i + _UNITS_AT_ONCE) for i in range(0, len(mass), _UNITS_AT_ONCE)]
    found = [_shares(mass[s], own[s], None if read is None else read[s]) for s in some]
    return np.concatenate(found) if found else np.empty((0, len(PARTS)))


def _shares(mass: np.ndarray, own: np.ndarray, read: np.ndarray | None) -> np.ndarray:
    units, _, cells = mass.shape
    far = np.minimum(own, cells - 1)[:, :, None] - np.arange(cells)  # a picture may end before its rows do
    mass = np.where(far >= 0, mass, 0).astype(np.float64)
    total = mass.sum(-1, keepdims=True)
    known = np.isfinite(total) & (total > 0)
    mass = np.divide(mass, total, out=np.zeros_like(mass), where=known)
    rest = (far >= 2) & known
    rest[:, :, 0] = False
    even = (mass * rest).sum(-1, keepdims=True) / np.maximum(rest.sum(-1, keepdims=True), 1)
    reads = rest & (mass > _STANDS_OUT * even if read is None else read)
    column = _most(rest.sum(1), reads.sum(1))[:, None, :]
    remains = rest & ~column
    place = np.arange(units)[:, None, None] * cells + far.clip(0)  # of each unit's distances
    may, hits = (np.bincount(place[some], minlength=units * cells) for some in (rest, reads & ~column))
    diagonal = _most(may, hits)[place]
    where = (
        known & (far >= 0) & (np.arange(cells) == 0),
        known & (far >= 0) & (far < 2) & (np.arange(cells) > 0),
        rest & column,
        remains & diagonal,
        remains & ~diagonal,
    )
    rows = known.sum((1, 2))
    sums = np.stack([(mass * part).sum((1, 2)) for part in where], -1)
    return np.divide(sums, rows[:, None], out=np.full(sums.shape, np.nan), where=rows[:, None] > 0)


def _most(may: np.ndarray, hits: np.ndarray) -> np.ndarray:
    """Which columns or distances at least half of the rows that may read them do read."""
    found: np.ndarray = (may >= _FEWEST_ROWS) & (2 * hits >= may)
    return found


def kind(parts: np.ndarray, dense: bool) -> str | None:
    """The dominant shape of a head, one of KINDS; None where it was not measured. dense: it ran dense and reads all."""
    if dense:
        return "dense"
    return PARTS[int(np.argmax(parts))] if np.isfinite(parts).all() else None
