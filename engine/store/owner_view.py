"""The store as one owner sees it: what every page and every query module reads and writes through.

An owner sees their own runs and the bundled samples. That is decided in one place, the views of schema ``visible``
(duckdb_store.py): the names in a query mean these views, so a query can't forget the owner. Whose a run is was
decided when its prompt was submitted (``RunRow.owner``); None is the one person of a dashboard without a login.

Pages read nothing but this and ``OwnerJobs``; tests/engine/store/test_owner_view.py walks every query. Another
owner's run is answered like one that does not exist; places in the job queue count everybody's jobs.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Sequence
from dataclasses import astuple
from pathlib import Path
from typing import Any, TypeVar

import pandas as pd

from routesparse.engine.errors import StoreError
from routesparse.engine.store import bundle, trash
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.labels import Label

Made = TypeVar("Made")
_FEW_RUNS = 16  # a page's one run, or those that it compares; lists of all runs change with every new one


class _UnknownRunError(LookupError):
    """No stored run of this owner has the id."""


class OwnerView:
    """One owner's runs and the samples. A run of somebody else's is to it like one that does not exist."""

    def __init__(self, store: Store, owner: str | None) -> None:
        self._store = store
        self.owner = owner
        self._begun: tuple[int, int] | None = None  # the store's generation and changes at the first question

    @property
    def generation(self) -> int:
        """Grows with every change of the store, so that pages know when to read again."""
        return self._store.generation

    def frame(self, sql: str, parameters: Sequence[Any] = (), *, of: Sequence[str] = ()) -> pd.DataFrame:
        """The result of a read as a DataFrame. ``of``: the runs whose rows alone it reads. Errors: StoreError."""

        def read() -> pd.DataFrame:
            with self._store.reading(self.owner) as cursor:
                return cursor.execute(sql, list(parameters)).df()

        found: pd.DataFrame = self._kept("frame", sql, parameters, of, read)
        return found.copy(deep=False)  # pandas copies what its owner changes

    def rows(
        self, sql: str, parameters: Sequence[Any] = (), *, of: Sequence[str] = ()
    ) -> list[tuple[Any, ...]]:
        """The result of a read as tuples; blobs as bytes. ``of`` as in ``frame``. Errors: StoreError."""

        def read() -> list[tuple[Any, ...]]:
            with self._store.reading(self.owner) as cursor:
                return cursor.execute(sql, list(parameters)).fetchall()

        return list(self._kept("rows", sql, parameters, of, read))

    def made(
        self, what: str, key: Sequence[Any], make: Callable[[], Made], *, of: Sequence[str] = ()
    ) -> Made:
        """What ``make`` makes of this owner's rows, kept as they are: pages draw the same at every rerun and for every
        reader.

        ``what``, ``key`` and ``of``, which is as in ``frame``, name everything else that it depends on. Nobody may
        change what comes back. ``make`` may use what was read of this view before, and of no other: where the store has
        changed since the view's first question, it is made for this caller alone. Errors: those of ``make``.
        """
        found: Made = self._kept("made", what, [*key, list(of)], of, make)
        return found

    def _kept(
        self, kind: str, sql: str, parameters: Sequence[Any], of: Sequence[str], read: Callable[[], Any]
    ) -> Any:
        """What ``read`` returns, kept until the next change; of stored runs alone until one is deleted or labelled."""
        asked = (self.owner, kind, sql, _hashable(parameters))
        now = self._store.generation, self._store.changes
        self._begun = self._begun or now
        generation, changes = self._begun if kind == "made" else now
        if 0 < len(of) <= _FEW_RUNS and all(self.key(run_id) for run_id in of):
            return self._store.reads_of_runs.read(changes, asked, read)
        return self._store.reads.read(generation, asked, read)

    def key(self, run_id: str) -> int:
        """The run's integer key, or 0, which no run has: as a literal it lets DuckDB skip row groups."""

        def read() -> list[tuple[int]]:
            with self._store.reading(self.owner) as cursor:
                found = cursor.execute("SELECT run_key FROM run WHERE run_id = ?", [run_id]).fetchall()
            if not found:
                raise _UnknownRunError  # and is not kept: the run may come in later
            return found

        try:
            return int(
                self._store.reads_of_runs.read(self._store.changes, (self.owner, "key", run_id), read)[0][0]
            )
        except _UnknownRunError:
            return 0

    def run_ids(self) -> set[str]:
        """The ids of all runs that this owner sees."""
        return {row[0] for row in self.rows("SELECT run_id FROM run")}

    def bundle(self, run_id: str) -> Path | None:
        """The folder of a run's or certificate's bundle; None where it is not this owner's to see, or is gone."""
        if not self.rows("SELECT 1 FROM stored WHERE run_id = ?", [run_id], of=[run_id]):
            return None
        place = self._store.bundles / run_id
        return place if place.is_dir() else None

    def delete_run(self, run_id: str) -> None:
        """Move a run or certificate to the trash. Errors: StoreError if unknown, or a sample."""
        found = self.rows("SELECT owner FROM stored WHERE run_id = ?", [run_id])
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

    def empty_trash(self, run_ids: Sequence[str]) -> None:
        """Delete these runs for good, as far as they are in this owner's trash. Errors: StoreError."""
        mine = {row[0] for row in self.rows("SELECT run_id FROM trashed_run")}
        trash.empty(self._store, [run_id for run_id in run_ids if run_id in mine])

    def set_label(self, run_id: str, label: Label) -> None:
        """Keep this owner's name, notes, tags and pin of a run. Errors: StoreError, also for one not theirs to see."""
        if run_id not in self.run_ids():
            raise StoreError(f"run {run_id} is not in the store; its name, notes and tags were not kept")
        name, notes, tags, pinned = astuple(label)
        with self._store.writing(f"the label of run {run_id} was not kept") as cursor:
            if pinned:
                cursor.execute(
                    "UPDATE run_label SET pinned = false WHERE owner IS NOT DISTINCT FROM ?", [self.owner]
                )
            cursor.execute(
                "DELETE FROM run_label WHERE run_id = ? AND owner IS NOT DISTINCT FROM ?",
                [run_id, self.owner],
            )
            if label != Label():
                cursor.execute(
                    "INSERT INTO run_label VALUES (?, ?, ?, ?, ?, ?)",
                    [run_id, self.owner, name, notes, list(tags), pinned],
                )


def _hashable(value: Any) -> Hashable:
    """A query's parameters as a key; 1, 1.0 and True are different questions."""
    if isinstance(value, list | tuple):
        return tuple(map(_hashable, value))
    return type(value), value
