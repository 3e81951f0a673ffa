"""What the page Sweep reads: the stored runs of one sweep, and the sweeps that have any."""

from __future__ import annotations

import pandas as pd

from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView


def runs_of(store: OwnerView, sweep_id: str) -> pd.DataFrame:
    """The stored runs of one sweep, oldest first, with the columns of queries.runs; empty where there are none."""
    found = store.rows("SELECT run_id FROM run WHERE sweep = ?", [sweep_id])
    run_ids = tuple(row[0] for row in found) or ("",)  # which no run has
    return queries.runs(store, queries.RunFilter(run_ids=run_ids)).iloc[::-1].reset_index(drop=True)


def sweeps(store: OwnerView) -> pd.DataFrame:
    """The sweeps that have stored runs, the newest first: ``sweep``, ``prompt_name``, ``runs`` (how many)."""
    return store.frame(
        """
        SELECT sweep, min(prompt_name) AS prompt_name, count(*) AS runs
        FROM run WHERE sweep IS NOT NULL GROUP BY sweep ORDER BY min(created_at) DESC, sweep
        """
    )
