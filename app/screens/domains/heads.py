"""What each head of the compared runs reads: its density, its predicted loss, and the shape of its attention."""

from __future__ import annotations

import numpy as np
import pandas as pd

from routesparse.engine.method import shape
from routesparse.engine.store import domain_queries
from routesparse.engine.store.domain_queries import Picture
from routesparse.engine.store.owner_view import OwnerView

CELLS = 32  # a prompt has no more of them, so that pictures of any resolution give alike shapes
PARTS = list(shape.PARTS)


def of_runs(store: OwnerView, runs: pd.DataFrame) -> pd.DataFrame:
    """domain_queries.heads of the runs with the shares PARTS; NaN where a run kept no picture of the common cells.

    Errors: InputError for a bundle that can't be read.
    """
    found = domain_queries.heads(store, list(runs["run_id"]))
    pictures = {run_id: domain_queries.pictures(store, run_id) for run_id in runs["run_id"]}
    block = int(runs["block_k"].iloc[0])
    least = -(-int(runs["tokens"].max()) // (block * CELLS))
    pool = max([one.pool for part in pictures.values() for one in part], default=1)
    pool *= -(-least // pool)
    shares = [_shares(part, pool, block).assign(run_id=run_id) for run_id, part in pictures.items()]
    found = found.merge(pd.concat(shares), on=["run_id", "layer", "head"], how="left")
    # A cell shows its largest block. Of what it hides, the local band is known; the rest is spread over many blocks.
    hidden = 1 - found["seen"]
    local = (found["local_band"] - found["local"]).clip(0, hidden)
    return found.assign(local=found["local"] + local, scattered=found["scattered"] + hidden - local)


def _shares(pictures: list[Picture], pool: int, block: int) -> pd.DataFrame:
    """A row a head, the mean over its segments. pool: KV blocks of a cell."""
    fitting = [one for one in pictures if pool % one.pool == 0]
    rows = []
    for one in fitting:
        starts = np.arange(0, one.mass.shape[1], pool // one.pool)
        mass = np.maximum.reduceat(one.mass, starts, axis=1)
        seen = float(np.clip(mass.sum(1), 0, 1).mean())
        parts = seen * shape.shares(mass[None], one.positions[None] // (pool * block))[0]
        rows.append((one.layer, one.head, *parts, seen))
    found = pd.DataFrame(rows, columns=["layer", "head", *PARTS, "seen"])
    return found.groupby(["layer", "head"], as_index=False).mean()


def by_domain(heads: pd.DataFrame) -> pd.DataFrame:
    """A row a domain and head: means over the prompts."""
    means = {name: (name, "mean") for name in ("density", "loss_nats", *PARTS)}
    return heads.groupby(["domain", "layer", "head"], as_index=False).agg(
        prompts=("run_id", "nunique"), **means
    )
