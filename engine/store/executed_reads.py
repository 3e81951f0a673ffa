"""What each head still reads of the prompt: the masks of the plans that ran, seen from the recorded rows.

A bundle's probe holds, beside the mass, what each budget of each family reads (probe_masks.py); the decision says
which budget ran. Dense units read every key before the row. The tail's rows are dense in every head and not counted.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pandas as pd
import pyarrow.parquet as pq

from routesparse.engine import probe_masks
from routesparse.engine.store import frames

_UNIT = ["layer", "head"]
_SOME_ROWS = 1024  # of candidate_score: some dozens of units


def unit_shares(
    place: Path, segment: int, batch_index: int, block: int
) -> tuple[pd.DataFrame, np.ndarray, int]:
    """Layer and head of the units with masks, what each reads of each cell float [units, cells], KV blocks in a cell.

    The share of the segment's recorded body rows after a cell's start whose plan reads a key of it; NaN where no such
    row comes after.
    """
    wanted = [("segment", "=", segment), ("batch_index", "=", batch_index)]
    columns = [*_UNIT, "rows", "positions", "masks", "mask_columns", "mask_pool"]
    probes = _frame(place / "probe.parquet", columns, wanted).dropna(subset=["masks"])
    library = candidates_of(place)
    units = probes.merge(_levels(place, wanted, library), on=_UNIT)
    if units.empty:
        return units, np.empty((0, 0)), 1
    families = families_of(library)
    shares = np.stack([_share(unit, block, families) for unit in frames.rows(units)])
    return units[_UNIT], shares, int(units["mask_pool"].iloc[0])


def _levels(place: Path, wanted: list[tuple[str, str, int]], library: pd.DataFrame) -> pd.DataFrame:
    """The family and budget level that ran in every unit, and where its body ends."""
    columns = [*_UNIT, "candidate", "pattern", "first_token", "body_tokens"]
    chosen = _frame(place / "head_choice.parquet", columns, wanted)
    return chosen.merge(library, on=["candidate", "pattern"])


def candidates_of(bundle: Path) -> pd.DataFrame:
    """Number, pattern and level of every candidate of a run: a family's budgets are numbered by their order in the
    library, alike in all units."""
    columns = ["candidate", "pattern"]
    first = next(
        pq.ParquetFile(bundle / "candidate_score.parquet").iter_batches(_SOME_ROWS, columns=columns), None
    )
    found = pd.DataFrame(columns=columns) if first is None else first.to_pandas()
    library = found.drop_duplicates().sort_values("candidate")
    return library.assign(level=library.groupby("pattern").cumcount())


def families_of(library: pd.DataFrame) -> list[str]:
    """The families of a run's candidates in their order, which is that of its probe_masks."""
    return [pattern for pattern in library["pattern"].unique() if pattern != "dense"]


def _share(unit: Any, block: int, families: list[str]) -> np.ndarray:
    """float [columns]: of the body rows that may read a cell, how many do; NaN where none may."""
    positions = np.frombuffer(unit.positions, "<i4")
    starts = np.arange(unit.mask_columns) * int(unit.mask_pool) * block
    may = (positions < unit.first_token + unit.body_tokens)[:, None] & (starts <= positions[:, None])
    reads = may
    if unit.pattern != "dense":
        levels = probe_masks.decode(unit.masks, unit.rows, int(unit.mask_columns), families)
        reads = may & (levels[unit.pattern] <= unit.level)
    rows = may.sum(0)
    return np.divide(reads.sum(0), rows, out=np.full(len(rows), np.nan), where=rows > 0)


def _frame(file: Path, columns: list[str], wanted: list[tuple[str, str, int]]) -> pd.DataFrame:
    """Rows of one segment; a column that the bundle is too old for is empty."""
    there = [name for name in columns if name in pq.read_schema(file).names]
    return pq.read_table(file, columns=there, filters=wanted).to_pandas().reindex(columns=columns)
