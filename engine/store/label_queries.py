"""What pages read of an owner's labels and trash."""

from __future__ import annotations

import pandas as pd

from routesparse.engine.store.labels import Label
from routesparse.engine.store.owner_view import OwnerView


def label(store: OwnerView, run_id: str) -> Label:
    """This owner's label of a run; an empty one where nothing was added, or the run is not theirs to see."""
    found = store.rows(
        "SELECT name, notes, tags, pinned FROM run_label JOIN run USING (run_id) WHERE run_id = ?",
        [run_id],
        of=[run_id],
    )
    if not found:
        return Label()
    name, notes, tags, pinned = found[0]
    return Label(name, notes, tuple(tags), pinned)


def pinned(store: OwnerView) -> str | None:
    """The run that this owner pinned as baseline; None where there is none."""
    found = store.rows("SELECT run_id FROM run_label JOIN run USING (run_id) WHERE pinned")
    return found[0][0] if found else None


def trash(store: OwnerView) -> pd.DataFrame:
    """This owner's deleted runs, the last deleted first."""
    return store.frame("SELECT * EXCLUDE (owner) FROM trashed_run ORDER BY deleted_at DESC, run_id")
