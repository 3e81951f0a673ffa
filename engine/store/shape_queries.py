"""The shape of every head's attention (method/shape.py): as recorded, else from the coarser picture of the probe."""

from __future__ import annotations

import numpy as np
import pandas as pd
import pyarrow as pa
import pyarrow.parquet as pq

from routesparse.engine.errors import InputError
from routesparse.engine.method import shape
from routesparse.engine.rows import RunRow
from routesparse.engine.store import thumbnail
from routesparse.engine.store.owner_view import OwnerView

COLUMNS = tuple(f"{part}_share" for part in shape.PARTS)
_MOST_COLUMNS = 1_024  # of a picture at full size, engine/decide/heatmap.py
_UNIT = ["layer", "head"]


def with_shapes(store: OwnerView, run: RunRow, choices: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The decisions of one segment with COLUMNS and ``shape``, one of shape.KINDS (None where it was not measured);
    and the tokens of a cell, which say how fine the sink, the local band and the columns are.

    Errors: InputError for a damaged bundle.
    """
    found, cell = choices, -(-run.tokens // run.block_k // _MOST_COLUMNS) * run.block_k
    if choices[COLUMNS[0]].isna().all():
        found, cell = _of_pictures(store, run, choices)
    parts = found[list(COLUMNS)].to_numpy(float)
    dense = found["pattern"] == "dense"
    kinds = [shape.kind(row, is_dense) for row, is_dense in zip(parts, dense, strict=True)]
    return found.assign(shape=pd.Series(kinds, found.index, object)), cell


def _of_pictures(store: OwnerView, run: RunRow, choices: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    place = store.bundle(run.run_id)
    if place is None or choices.empty:
        return choices, run.block_k
    first = choices.iloc[0]
    wanted = [(name, "=", int(first[name])) for name in ("segment", "batch_index")]
    names = [*_UNIT, "rows", "columns", "pool", "positions", "kinds", "mass"]
    try:
        pictures = pq.read_table(place / "probe.parquet", columns=names, filters=wanted).to_pylist()
        if not pictures:
            return choices, run.block_k
        cell = pictures[0]["pool"] * run.block_k
        routing = thumbnail.KINDS.index("routing")
        drawn = [np.frombuffer(one["kinds"], np.uint8) == routing for one in pictures]
        mass = [thumbnail.full_mass(one["mass"], one["rows"], one["columns"], 1.0) for one in pictures]
        own = [np.frombuffer(one["positions"], "<i4") // cell for one in pictures]
        shares = shape.shares(
            np.stack([np.where(rows[:, None], one, 0) for rows, one in zip(drawn, mass, strict=True)]),
            np.stack(own),
        )
    except (pa.ArrowException, OSError, ValueError) as error:
        raise InputError(
            f"the probe of run {run.run_id} can't be read ({type(error).__name__}); copy the bundle again"
        ) from error
    rows = pd.DataFrame(shares, columns=list(COLUMNS)).assign(**{n: [p[n] for p in pictures] for n in _UNIT})
    return choices.drop(columns=list(COLUMNS)).merge(rows, how="left", on=_UNIT), cell
