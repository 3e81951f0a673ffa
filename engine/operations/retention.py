"""Retention: which runs and jobs are older than asked, and their removal for good. The dashboard must be stopped.

Bundled samples, runs that are to be kept and pinned runs stay. The trash is emptied of what is older too, and the
database is written anew, because its file never shrinks by itself.
"""

from __future__ import annotations

import time
from collections.abc import Collection
from dataclasses import dataclass, replace
from datetime import UTC, datetime
from pathlib import Path

from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.operations.sizes import size_bytes
from routesparse.engine.store import trash
from routesparse.engine.store.compact import compact
from routesparse.engine.store.duckdb_store import Store


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
    before = size_bytes(home)
    limit = time.time() - age_s
    try:
        store = Store(home / "routesparse.duckdb")
    except StoreError as error:  # a dashboard holds it: the user's to stop
        raise InputError(str(error)) from error
    queue = JobQueue(home)
    try:
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
        thrown = sorted(path.name for path in store.trash.iterdir() if path.lstat().st_mtime < limit)
        found = Pruned(tuple(runs), tuple(jobs), tuple(thrown), tuple(pinned))
        if dry_run:
            return found
        for run in runs:
            store.delete_run(run)
        trash.empty(store, [*runs, *thrown])
        queue.forget(jobs)
    finally:
        store.close()
        queue.close()
    compact(home / "routesparse.duckdb")
    return replace(found, freed_bytes=before - size_bytes(home))


def seconds(created_at: str) -> float:
    """A run's time (ISO 8601) as seconds since 1970."""
    made = datetime.fromisoformat(created_at)
    return (made if made.tzinfo else made.replace(tzinfo=UTC)).timestamp()
