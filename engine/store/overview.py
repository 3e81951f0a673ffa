"""Everybody's runs in a few numbers, for the metrics: the web process writes them beside the database that it owns.

No name, no prompt, no owner: whoever may read metrics need not be allowed to read runs.
"""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any

import pandas as pd

from routesparse.engine import paths
from routesparse.engine.store import queries, verdicts
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.verdict import LEVELS


def overview(store: Store) -> dict[str, Any]:
    """Counts over all runs but the bundled samples. Errors: StoreError."""
    owners = [row[0] for row in store.rows("SELECT DISTINCT owner FROM run")]
    found = [queries.runs(OwnerView(store, owner)) for owner in owners]
    runs = pd.concat(found) if found else queries.runs(OwnerView(store, None))
    runs = runs[~runs["is_sample"].astype(bool)]
    levels = [verdict.level for verdict in verdicts.of_rows(runs)]
    audited, held = store.rows(
        "SELECT count(covered), count(*) FILTER (WHERE covered) FROM audit JOIN run USING (run_key) "
        "JOIN ingested_bundle USING (bundle_id) WHERE origin <> 'sample'"
    )[0]
    return {
        "written_at": time.time(),
        "verdicts": {level: levels.count(level) for level in LEVELS},
        "units": int(runs["units"].sum()),
        "dense_fallback_units": int(runs["dense_fallback_units"].sum()),
        "uncertified_units": int(runs["uncertified_units"].fillna(0).sum()),
        "audited_certificates": int(audited),
        "held_certificates": int(held),
        "bound_violations": int(runs["violations"].fillna(0).sum()),
    }


def write(store: Store) -> Path:
    """Write the numbers whole or not at all. Errors: StoreError, OSError."""
    return paths.write_json(paths.overview(store.database.parent), overview(store))
