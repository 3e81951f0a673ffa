"""The store as one owner sees it: what every page and every query module reads and writes through.

An owner sees their own runs and the bundled samples. That is decided in one place, the views of schema ``visible``
(duckdb_store.py): the names in a query mean these views, so a query can't forget the owner. Whose a run is was
decided when its prompt was submitted (``RunRow.owner``); None is the one person of a dashboard without a login.

Pages read nothing but this and ``OwnerJobs``; tests/engine/store/test_owner_view.py walks every query. Another
owner's run is answered like one that does not exist; places in the job queue count everybody's jobs.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pandas as pd

from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle
from routesparse.engine.store.duckdb_store import Store


class OwnerView:
    """One owner's runs and the samples. A run of somebody else's is to it like one that does not exist."""

    def __init__(self, store: Store, owner: str | None) -> None:
        self._store = store
        self.owner = owner

    @property
    def generation(self) -> int:
        """Grows with every change of the store, so that pages know when to read again."""
        return self._store.generation

    def frame(self, sql: str, parameters: Sequence[Any] = ()) -> pd.DataFrame:
        """The result of a read as a DataFrame. Errors: StoreError."""
        with self._store.reading(self.owner) as cursor:
            return cursor.execute(sql, list(parameters)).df()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The result of a read as tuples; blobs as bytes. Errors: StoreError."""
        with self._store.reading(self.owner) as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    def run_ids(self) -> set[str]:
        """The ids of all runs that this owner sees."""
        return {row[0] for row in self.rows("SELECT run_id FROM run")}

    def bundle(self, run_id: str) -> Path | None:
        """The folder of a run's bundle; None where the run is not this owner's to see, or the folder is gone."""
        if not self.rows("SELECT 1 FROM run WHERE run_id = ?", [run_id]):
            return None
        place = self._store.bundles / run_id
        return place if place.is_dir() else None

    def delete_run(self, run_id: str) -> None:
        """Move a run to the trash. Errors: StoreError if it is unknown, or a sample that others see as well."""
        found = self.rows("SELECT owner FROM run WHERE run_id = ?", [run_id])
        if not found:
            raise StoreError(f"run {run_id} is not in the store; nothing was deleted")
        if found[0][0] != self.owner:
            raise StoreError(
                f"run {run_id} is a bundled sample, which everybody here sees; it was not deleted"
            )
        self._store.delete_run(run_id)

    def restore_run(self, run_id: str) -> None:
        """Bring a deleted run of this owner back. Errors: StoreError if it isn't in the trash, BundleError."""
        place = self._store.trash / bundle.check_run_id(run_id)
        if not place.is_dir() or bundle.owner_of(place) != self.owner:
            raise StoreError(f"run {run_id} is no longer in the trash; analyse the prompt again")
        self._store.adopt(place, "spool", move=True)
