"""Retention: which runs and jobs are older than asked, and their removal for good.

Bundled samples, runs that are to be kept and pinned runs stay. The trash is emptied of what is older too. The database
is written anew, because its file never shrinks by itself: its dashboard must be stopped. A lake is compacted while
dashboards use it.
"""

from __future__ import annotations

from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.operations import places
from routesparse.engine.operations.places import Places
from routesparse.engine.store import trash
from routesparse.engine.store.duckdb_file import compact
from routesparse.engine.store.duckdb_store import Store
from routesparse.engine.store.opening import open_lake

_AT_ONCE = 64  # runs that one transaction removes


@dataclass(frozen=True)
class Pruned:
    """What is older, and what its removal brought; bytes are None until it was removed."""

    runs: tuple[str, ...]
    jobs: tuple[str, ...]
    trash: tuple[str, ...]
    pinned: tuple[str, ...]  # older too, kept because somebody pinned them
    freed_bytes: int | None = None


def prune(
    home: Path, age_s: float, keep: Collection[str] = (), *, dry_run: bool, with_pinned: bool = False
) -> Pruned:
    """Remove runs and ended jobs (with their prompts) older than ``age_s`` seconds; ``dry_run``: only name them.

    keep: ids of runs that stay. with_pinned: remove runs that somebody pinned on the dashboard, too.
    Errors: InputError for an unknown id in keep, and where a dashboard holds the database; StoreError.
    """
    at = places.of(home)
    before = at.size_bytes()
    store = _opened(at)
    queue = JobQueue(home)
    try:
        limit = queue.now() - age_s  # where hosts share the queue their server's clock, which timed the jobs
        unknown = set(keep) - store.run_ids()
        if unknown:
            raise InputError(
                f"no run is called {min(unknown)!r}; `routesparse runs` lists them. Nothing was removed"
            )
        stored = store.rows(
            "SELECT stored.run_id, created_at FROM stored JOIN ingested_bundle USING (bundle_id) "
            "WHERE origin <> 'sample' ORDER BY created_at"
        )
        old = [run for run, made in stored if run not in keep and seconds(made) < limit]
        pins = {run for (run,) in store.rows("SELECT run_id FROM run_label WHERE pinned")}
        pinned = [] if with_pinned else [run for run in old if run in pins]
        runs = [run for run in old if run not in pinned]
        jobs = queue.ended_before(limit)
        ages = {path.name: trash.changed_at(path) for path in store.trash.iterdir()}
        thrown = sorted(name for name, changed in ages.items() if changed is not None and changed < limit)
        found = Pruned(tuple(runs), tuple(jobs), tuple(thrown), tuple(pinned))
        if dry_run:
            return found
        for first in range(0, len(runs), _AT_ONCE):
            store.delete_runs(runs[first : first + _AT_ONCE])
        trash.empty(store, [*runs, *thrown])
        queue.forget(jobs)
        if at.lake is not None:
            from routesparse.engine.scale.ducklake import LakeStore

            assert isinstance(store, LakeStore)
            store.compact()
    finally:
        store.close()
        queue.close()
    if at.lake is None:
        compact(home / "routesparse.duckdb")
    return replace(found, freed_bytes=before - at.size_bytes())


def _opened(at: Places) -> Store:
    """Errors: InputError for a file that a dashboard holds, which is the user's to stop; StoreError."""
    if at.lake is not None:
        return open_lake(at.lake)
    try:
        return Store(at.home / "routesparse.duckdb")
    except StoreError as error:
        raise InputError(str(error)) from error


def seconds(created_at: str) -> float:
    """A run's time (ISO 8601) as seconds since 1970."""
    made = datetime.fromisoformat(created_at)
    return (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()
