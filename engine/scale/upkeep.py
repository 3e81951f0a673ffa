"""Give back the room that deleted runs left in a lake.

DuckLake deletes no row from a file and no file by itself: it notes what is deleted, and keeps all for who asks for an
earlier snapshot; deleted rows that lay in PostgreSQL stay there, prompts among them. Here files with deleted rows are
written anew and small ones merged, all snapshots but the last forgotten, and rows and files deleted that no snapshot
shows.

ducklake_flush_inlined_data (1.5.5) is left alone: a process that has the lake open fails at its next read and until it
is started again (INTERNAL Error: Attempted to access index 0 within vector of size 0).

In the shared folder files of writers that died before their commit go too. In an object store these stay: DuckLake
would take every Parquet file below the address that this catalogue does not name for one of them, and another lake's
may lie there. In the shared folder none can (the file ``identity``).

Each step is a transaction of its own: where one fails, what was done before is whole, and the next call does the rest.
"""

from __future__ import annotations

import time

from routesparse.engine.errors import StoreError
from routesparse.engine.scale.ducklake import SCHEMA, LakeStore

READERS_S = 5.0  # a page that reads a file which is to go has read it by then
_STEPS = (
    "ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
    "ducklake_merge_adjacent_files('lake')",
    "ducklake_expire_snapshots('lake', older_than => now() + INTERVAL '1 day')",  # hosts' clocks differ; never the last
)
_FILES = ("ducklake_cleanup_old_files('lake', cleanup_all => true)",)
# No writer takes that long from its files to its commit.
_ORPHANS = ("ducklake_delete_orphaned_files('lake', older_than => now() - INTERVAL '1 day')",)
_FAILED = "the runs were removed, but the lake was not compacted"
_LEFT = "the next prune does the rest"


def compact(lake: LakeStore) -> None:
    """Take the room of deleted rows back, while others read and write. Errors: StoreError."""
    try:
        _call(lake, _STEPS)
        _forget_rows(lake)
        time.sleep(READERS_S)
        _call(lake, _FILES)
        if not lake.rows_elsewhere:
            _call(lake, _ORPHANS)
    except StoreError as error:
        text = str(error)
        raise StoreError(text if text.startswith(_FAILED) else f"{_FAILED}: {text}") from error


def _forget_rows(lake: LakeStore) -> None:
    """Delete the rows in PostgreSQL that ended before the first snapshot that is left, and the bounds of texts.

    DuckLake keeps the first and the last text that a column ever held. A column without bounds (NULL) it reads whole,
    and gives it none again.
    """
    tables = f"SELECT table_name FROM {SCHEMA}.ducklake_inlined_data_tables"
    with lake.writing(_FAILED, _LEFT) as cursor:
        found = cursor.execute(f"FROM postgres_query('catalogue', '{tables}')").fetchall()
        for (name,) in found:
            cursor.execute(
                f"""CALL postgres_execute('catalogue', 'DELETE FROM {SCHEMA}."{name}" WHERE end_snapshot <= """
                f"(SELECT min(snapshot_id) FROM {SCHEMA}.ducklake_snapshot)')"
            )
        cursor.execute(
            f"CALL postgres_execute('catalogue', 'UPDATE {SCHEMA}.ducklake_table_column_stats "
            "SET min_value = NULL, max_value = NULL WHERE (table_id, column_id) IN "
            f"(SELECT table_id, column_id FROM {SCHEMA}.ducklake_column WHERE column_type = ''varchar'')')"
        )


def _call(lake: LakeStore, steps: tuple[str, ...]) -> None:
    for step in steps:
        with lake.writing(_FAILED, _LEFT) as cursor:
            cursor.execute(f"SELECT count(*) FROM {step}").fetchall()
