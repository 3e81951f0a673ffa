"""All rows of a store, with the run's id in the place of its key, to be compared with another's."""

from __future__ import annotations

from collections import Counter

from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.tables import FACT_TABLES


def rows_of(store: Store) -> dict[str, Counter[str]]:
    """Table -> its rows as text, with how often each is there."""
    found = {}
    for table in ("run", "run_summary", "ingested_bundle", *FACT_TABLES):
        columns = [row[0] for row in store.rows(f"SELECT column_name FROM (DESCRIBE {table})")]
        kept = ", ".join(f't."{name}"' for name in columns if name not in ("run_key", "ingested_at"))
        named = table in ("run", "ingested_bundle")
        source = f"{table} t" if named else f"{table} t JOIN run r USING (run_key)"
        sql = f"SELECT {'t' if named else 'r'}.run_id, {kept} FROM {source}"
        found[table] = Counter(map(repr, store.rows(sql)))
    return found


def everything(store: Store) -> tuple[dict[str, Counter[str]], list[list[tuple]]]:
    """All rows of a store's runs, and what lies beside them."""
    beside = ("run_label", "trashed_run", "ingested_bundle")
    return rows_of(store), [store.rows(f"SELECT * FROM {table} ORDER BY ALL") for table in beside]
