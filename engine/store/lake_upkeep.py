"""Give back the room that deleted runs left in a lake.

DuckLake deletes no row from a file and no file by itself: it notes what is deleted, and keeps all for who asks for an
earlier snapshot; deleted rows that lay in PostgreSQL stay there, prompts among them. Here files with deleted rows are
written anew and small ones merged, all snapshots but the last forgotten, and rows and files deleted that no snapshot
shows, those of writers that died before their commit too.

ducklake_flush_inlined_data (1.5.5) is left alone: a process that has the lake open fails at its next read and until it
is started again (INTERNAL Error: Attempted to access index 0 within vector of size 0).

Each step is a transaction of its own: where one fails, what was done before is whole, and the next call does the rest.
"""

from __future__ import annotations

import time

from routesparse.engine.store.ducklake import SCHEMA, LakeStore

READERS_S = 5.0  # a page that reads a file which is to go has read it by then
_STEPS = (
    "ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
    "ducklake_merge_adjacent_files('lake')",
    "ducklake_expire_snapshots('lake', older_than => now() + INTERVAL '1 day')",  # hosts' clocks differ; never the last
)
_FILES = (
    "ducklake_cleanup_old_files('lake', cleanup_all => true)",
    # No writer takes that long from its files to its commit.
    "ducklake_delete_orphaned_files('lake', older_than => now() - INTERVAL '1 day')",
)


def compact(lake: LakeStore) -> None:
    """Take the room of deleted rows back, while others read and write. Errors: StoreError."""
    _call(lake, _STEPS)
    _forget_rows(lake)
    time.sleep(READERS_S)
    _call(lake, _FILES)


def _forget_rows(lake: LakeStore) -> None:
    """Delete the rows in PostgreSQL that ended before the first snapshot that is left."""
    tables = f"SELECT table_name FROM {SCHEMA}.ducklake_inlined_data_tables"
    with lake.writing("deleted rows were not removed from PostgreSQL") as cursor:
        found = cursor.execute(f"FROM postgres_query('catalogue', '{tables}')").fetchall()
        for (name,) in found:
            cursor.execute(
                f"""CALL postgres_execute('catalogue', 'DELETE FROM {SCHEMA}."{name}" WHERE end_snapshot <= """
                f"(SELECT min(snapshot_id) FROM {SCHEMA}.ducklake_snapshot)')"
            )


def _call(lake: LakeStore, steps: tuple[str, ...]) -> None:
    for step in steps:
        with lake.writing("the lake was not compacted") as cursor:
            cursor.execute(f"SELECT count(*) FROM {step}").fetchall()
