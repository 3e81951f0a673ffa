"""The shape of every head's attention (method/shape.py): as recorded, else from the coarser picture of the probe."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pandas as pd

from routesparse.app.ui import numbers
from routesparse.engine.errors import InputError
from routesparse.engine.method import shape
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView

COLUMNS = tuple(f"{part}_share" for part in shape.PARTS)
_MOST_COLUMNS = 1_024  # of a picture at full size, engine/decide/heatmap.py


def of_pictures(pictures: queries.RoutingPictures, block_k: int, columns: Sequence[str]) -> pd.DataFrame:
    """``layer head`` and the shares of shape.PARTS, named ``columns``, as the pictures show them."""
    shares = shape.shares(pictures.mass, pictures.positions // (pictures.pool * block_k))
    return pd.DataFrame(shares, columns=list(columns)).assign(layer=pictures.layer, head=pictures.head)


def with_shapes(store: OwnerView, run: RunRow, choices: pd.DataFrame) -> tuple[pd.DataFrame, int]:
    """The decisions of one segment with COLUMNS and ``shape``, one of shape.KINDS (None where it was not measured);
    and the tokens of a cell, which say how fine the sink, the local band and the columns are.
    """
    found, cell = choices, -(-run.tokens // run.block_k // _MOST_COLUMNS) * run.block_k
    if len(choices) and choices[COLUMNS[0]].isna().all():
        first = choices.iloc[0]
        place = int(first["segment"]), int(first["batch_index"])
        try:
            pictures = queries.routing_pictures(store, run.run_id, *place)
        except InputError:  # the probe's own card says so
            pictures = None
        if pictures is not None:
            cell = pictures.pool * run.block_k
            rows = of_pictures(pictures, run.block_k, COLUMNS)
            found = choices.drop(columns=list(COLUMNS)).merge(rows, how="left", on=["layer", "head"])
    parts = found[list(COLUMNS)].to_numpy(float)
    kinds = [shape.kind(row, p == "dense") for row, p in zip(parts, found["pattern"], strict=True)]
    return found.assign(shape=pd.Series(kinds, found.index, object)), cell


def words(row: Any, what: str) -> str:
    """Such as "vertical: attention on sink 7 %, local 25 %, ...", of a row with COLUMNS and ``shape``."""
    if numbers.is_missing(row.sink_share):
        return "reads everything" if row.shape == "dense" else "shape not measured"
    parts = (
        f"{part} {numbers.share(getattr(row, c), 0)}" for part, c in zip(shape.PARTS, COLUMNS, strict=True)
    )
    return f"{row.shape}: {what} {', '.join(parts)}"
