"""What each head of the compared runs reads: its density, its predicted loss, and the shape of its attention."""

from __future__ import annotations

import pandas as pd

from routesparse.app.unit import shapes
from routesparse.engine.errors import InputError
from routesparse.engine.method import shape
from routesparse.engine.store import domain_queries, queries
from routesparse.engine.store.owner_view import OwnerView

PARTS = list(shape.PARTS)


def of_runs(store: OwnerView, runs: pd.DataFrame) -> pd.DataFrame:
    """domain_queries.heads of the runs with the shares PARTS: as recorded, else as the pictures of the first segment
    show them (app/unit/shapes.py), else NaN."""
    found = domain_queries.heads(store, list(runs["run_id"])).set_index(["run_id", "layer", "head"])
    block = int(runs["block_k"].iloc[0])
    for run_id in found.index[found[PARTS[0]].isna()].unique("run_id"):
        try:
            seen = queries.routing_pictures(store, run_id, 0)
        except InputError:  # the page counts its heads as left out
            continue
        if seen is not None:
            rows = shapes.of_pictures(seen, block, PARTS).assign(run_id=run_id)
            found = found.fillna(rows.set_index(found.index.names))
    return found.reset_index()


def by_domain(heads: pd.DataFrame) -> pd.DataFrame:
    """A row a domain and head: means over the prompts."""
    means = {name: (name, "mean") for name in ("density", "loss_nats", *PARTS)}
    return heads.groupby(["domain", "layer", "head"], as_index=False).agg(
        prompts=("run_id", "nunique"), **means
    )
