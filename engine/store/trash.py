"""Deleted runs: the table trashed_run lists them, the trash folder holds their bundles for KEPT_DAYS days.

A deleted run is out of every table of the store; restoring it takes its bundle in again. The folder decides what is in
the trash, and ``sync`` makes the table say the same: after a crash, and for runs that an older version deleted.
"""

from __future__ import annotations

import shutil
import time
from collections.abc import Sequence
from contextlib import suppress
from datetime import UTC, datetime
from glob import escape
from pathlib import Path
from typing import TYPE_CHECKING

from routesparse.engine import paths
from routesparse.engine.errors import BundleError
from routesparse.engine.store import bundle

if TYPE_CHECKING:
    from routesparse.engine.store.duckdb_store import Store

KEPT_DAYS = 7


def changed_at(path: Path) -> float | None:
    """When an entry changed, s since the epoch; None where it is gone: another dashboard may have moved it."""
    try:
        return path.lstat().st_mtime
    except FileNotFoundError:
        return None


def sweep(store: Store) -> None:
    """Delete for good what has been in the trash for KEPT_DAYS days, and bring the table in line with the folder."""
    old = time.time() - KEPT_DAYS * 24 * 3600
    ages = {path.name: changed_at(path) for path in store.trash.iterdir()}
    empty(store, [name for name, changed in ages.items() if changed is not None and changed < old])
    sync(store)


def sync(store: Store) -> None:
    """List every bundle of the trash folder, and nothing else; words on runs that are gone for good go too."""
    with store.writing("the trash was not listed") as cursor:  # alone: nobody deletes a run between two looks
        listed = {row[0] for row in store.rows("SELECT run_id FROM trashed_run")}
        there = {path.name: path for path in store.trash.iterdir() if path.is_dir()}
        missing = [(path, changed_at(path)) for name, path in there.items() if name not in listed]
        labelled = {row[0] for row in store.rows("SELECT DISTINCT run_id FROM run_label")} - store.run_ids()
        gone = [name for name in labelled - there.keys() if not (store.bundles / name).exists()]
        for run_id in listed - there.keys():
            cursor.execute("DELETE FROM trashed_run WHERE run_id = ?", [run_id])
        for run_id in gone:
            cursor.execute("DELETE FROM run_label WHERE run_id = ?", [run_id])
        for path, changed in missing:
            if changed is None:
                continue
            try:
                run = bundle.head_of(path)
            except BundleError:
                continue  # no bundle of ours: it goes when its time is up
            cursor.execute(
                "INSERT INTO trashed_run VALUES (?, ?, ?, ?, ?, ?)",
                [
                    *(run[name] for name in ("run_id", "owner", "prompt_name", "tokens", "created_at")),
                    datetime.fromtimestamp(changed, UTC).replace(tzinfo=None),
                ],
            )


def empty(store: Store, run_ids: Sequence[str]) -> None:
    """Delete runs of the trash for good, with their labels and the files exported of them. Errors: StoreError."""
    if not run_ids:
        return
    with store.writing("the trash was not emptied") as cursor:
        for table in ("trashed_run", "run_label"):
            cursor.execute(
                f"DELETE FROM {table} WHERE list_contains(?::VARCHAR[], run_id) "
                "AND run_id NOT IN (SELECT run_id FROM stored)",
                [list(run_ids)],
            )
    for run_id in run_ids:
        shutil.rmtree(store.trash / run_id, ignore_errors=True)
        drop_exports(f"*{escape(run_id)}[.-]*")


def drop_exports(pattern: str, older_than_s: float = 0.0) -> None:
    """Delete the exported files of this pattern; one that can't be deleted now is tried again every day."""
    for path in paths.exports().glob(pattern):
        with suppress(OSError):
            if time.time() - path.lstat().st_mtime >= older_than_s:
                path.unlink()
