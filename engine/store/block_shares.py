"""What each head reads of each part of the prompt, and the attention that is lost there, over one segment or all.

An audited run has it for every later row (table block_reads). Older runs, and runs without an audit, have the masks of
the probe's rows (executed_reads.py): coarser, a sample, and without what was lost. Dense units read everything.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Literal

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.errors import InputError
from routesparse.engine.store import executed_reads
from routesparse.engine.store.owner_view import OwnerView

_KEPT = 8  # answers; a run of 32 x 32 heads and 131,072 tokens takes some 10 MB
_MOST_CELLS = 1 << 27  # of all heads together: four such arrays take 2 GB


@dataclass(frozen=True)
class BlockShares:
    """float32 [layers, heads, cells] each; a cell is ``pool`` KV blocks, NaN means not measured.

    reads: of the pairs (later body row, key of the cell) the share that is read; NaN where only the tail comes later.
    mass, lost: attention of a mean audited row on the cell, and the part of it that the plan leaves out (0 for dense
    heads, which are not audited); None without an audit of this kind.
    """

    pool: int
    source: Literal["audit", "probe"]
    reads: np.ndarray
    mass: np.ndarray | None = None
    lost: np.ndarray | None = None
    # KV blocks that were recorded together: one of them read marks all, so ``reads`` is at most.
    coarse: int = 1


def block_shares(
    store: OwnerView, run_id: str, segment: int | None, batch_index: int = 0
) -> BlockShares | None:
    """Of one segment's rows, or of all rows (None); None where the run recorded neither kind.

    Errors: InputError for a damaged bundle.
    """
    place = store.bundle(run_id)
    if place is None:
        return None
    sql = "SELECT bundle_id, layers, heads, tokens, block_q, block_k FROM run WHERE run_id = ?"
    digest, layers, heads, tokens, block_q, block_k = store.rows(sql, [run_id], of=[run_id])[0]
    shape = (layers, heads, -(-tokens // block_k))
    try:
        return _read(place, digest, shape, (block_q, block_k), segment, batch_index)
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"what the heads of run {run_id} read can't be read ({type(error).__name__}); copy the bundle again"
        ) from error


@lru_cache(_KEPT)
def _read(
    place: Path,
    digest: str,
    shape: tuple[int, int, int],
    block: tuple[int, int],
    segment: int | None,
    batch_index: int,
) -> BlockShares | None:
    """``digest`` is part of the key: a deleted run's place may be taken by another."""
    wanted = [("batch_index", "=", batch_index), *([] if segment is None else [("segment", "=", segment)])]
    columns = ["layer", "head", "segment", "pattern", "first_token", "body_tokens"]
    chosen = pq.read_table(place / "head_choice.parquet", columns=columns, filters=wanted).to_pandas()
    chosen["unit"] = chosen["layer"] * shape[1] + chosen["head"]
    file = place / "block_reads.parquet"
    if file.exists():
        audited = pq.read_table(file, filters=wanted)
        if audited.num_rows:
            return _audited(chosen, audited, shape, block)
    return _sampled(place, chosen, shape, block, batch_index)


def _audited(
    chosen: pd.DataFrame, audited: pa.Table, shape: tuple[int, int, int], block: tuple[int, int]
) -> BlockShares:
    pool = int(audited.column("pool")[0].as_py())
    cells = -(-shape[2] // pool)
    sums = _Sums(shape[0] * shape[1], cells)
    mass, lost = (np.zeros((shape[0] * shape[1], cells), np.float32) for _ in range(2))
    rows = np.zeros(shape[0] * shape[1])  # of the segments whose lost mass is known
    seen = np.zeros(shape[0] * shape[1])  # of those whose attention is
    keys = audited.select(["layer", "head", "segment", "cells"]).to_pandas()
    for segment, units in chosen.groupby("segment"):
        body = int(units["body_tokens"].iloc[0])
        later = _later(int(units["first_token"].iloc[0]), body, block, pool)
        dense = units.loc[units["pattern"] == "dense", "unit"].to_numpy()
        sums.add(dense, np.ones((len(dense), len(later)), np.float32), later)
        rows[dense] += body
        mine = np.flatnonzero(keys["segment"] == segment)
        if not len(mine):
            continue
        part = audited.take(pa.array(mine))
        unit = (keys["layer"] * shape[1] + keys["head"]).to_numpy()[mine]
        width = int(keys["cells"].iloc[mine[0]])
        sums.add(unit, _matrix(part, "reads", "u1", width) / np.float32(255), later)
        mass[unit, :width] += body * _matrix(part, "mass", "<f2", width)
        lost[unit, :width] += body * _matrix(part, "lost", "<f2", width)
        rows[unit] += body
        seen[unit] += body
    return BlockShares(
        pool,
        "audit",
        sums.share().reshape(*shape[:2], cells),
        _mean(mass, seen).reshape(*shape[:2], cells),
        _mean(lost, rows).reshape(*shape[:2], cells),
    )


def _sampled(
    place: Path, chosen: pd.DataFrame, shape: tuple[int, int, int], block: tuple[int, int], batch_index: int
) -> BlockShares | None:
    """Of the recorded rows; all segments at the resolution of a KV block, since their masks' cells differ."""
    sums, found, coarse = _Sums(shape[0] * shape[1], shape[2]), False, 1
    for segment, units in chosen.groupby("segment"):
        places, shares, pool = executed_reads.unit_shares(place, int(segment), batch_index, block[1])
        dense = units.loc[units["pattern"] == "dense", "unit"].to_numpy()
        if places.empty and len(dense) < len(units):
            continue
        found, coarse = True, max(coarse, pool)
        later = _later(int(units["first_token"].iloc[0]), int(units["body_tokens"].iloc[0]), block, 1)
        sums.add(dense, np.ones((len(dense), len(later)), np.float32), later)
        unit = (places["layer"] * shape[1] + places["head"]).to_numpy()
        sparse = ~np.isin(unit, dense)
        wide = np.repeat(shares[sparse], pool, axis=1)[:, : len(later)].astype(np.float32)
        sums.add(unit[sparse], wide, later)
    return BlockShares(1, "probe", sums.share().reshape(shape), coarse=coarse) if found else None


class _Sums:
    """Shares of several segments, weighted by the rows that they speak of; NaN says nothing."""

    def __init__(self, units: int, cells: int) -> None:
        if units * cells > _MOST_CELLS:
            raise InputError(
                f"{units:,} heads and {cells:,} blocks of the prompt are more than a page holds; open a shorter prompt"
            )
        self._read, self._rows = (np.zeros((units, cells), np.float32) for _ in range(2))

    def add(self, unit: np.ndarray, share: np.ndarray, later: np.ndarray) -> None:
        """share [units, cells of the segment], later [the same cells]: whole query blocks after each."""
        width = min(len(later), share.shape[1])
        share = share[:, :width]
        known = ~np.isnan(share)
        self._read[unit, :width] += np.where(known, share, 0) * later[:width]
        self._rows[unit, :width] += known * later[:width]

    def share(self) -> np.ndarray:
        return np.divide(self._read, self._rows, out=np.full_like(self._read, np.nan), where=self._rows > 0)


def _later(first_token: int, body: int, block: tuple[int, int], pool: int) -> np.ndarray:
    """float32 [cells]: whole query blocks of the body that begin after a KV block, mean over the blocks of a cell."""
    ends = (np.arange(-(-(first_token + body) // block[1])) + 1) * block[1]
    starts = first_token + np.arange(body // block[0]) * block[0]
    later = len(starts) - np.searchsorted(starts, ends)
    cuts = np.arange(0, len(later), pool)
    return (np.add.reduceat(later, cuts) / np.diff(np.append(cuts, len(later)))).astype(np.float32)


def _matrix(part: pa.Table, column: str, kind: str, width: int) -> np.ndarray:
    """float32 [rows, width] from bytes. Errors: ValueError for bytes of another number."""
    stored = b"".join(part.column(column).to_pylist())
    return np.frombuffer(stored, np.dtype(kind)).reshape(part.num_rows, width).astype(np.float32)


def _mean(sums: np.ndarray, rows: np.ndarray) -> np.ndarray:
    return np.where(rows[:, None] > 0, sums / np.maximum(rows, 1)[:, None], np.float32(np.nan)).astype(
        np.float32
    )
