"""How a job ends exactly once although its result lies in two places, a folder and a database.

1. The attempt's bundle is written into ``spool/.staged/<run id>``, which no reader looks into.
2. ``JobQueue.finish`` commits "done" with that run id. This is the one moment at which the job ends; it is refused
   for a worker whose lease was taken, which then discards its bundle.
3. The bundle is renamed into the spool, and the row says so.

Killed before 2, the job runs again and the staged folder is swept; between 2 and 3, ``publish_finished`` (every
worker's start and every turn of its loop) does the renaming. Run ids carry the attempt, so no two attempts ever
meet in one folder, and the store sees at most one run of a job.
"""

from __future__ import annotations

import shutil
from pathlib import Path

from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.rows import RunRecord
from routesparse.engine.store import bundle

STAGED = ".staged"


def spool_of(queue: JobQueue) -> Path:
    """The folder that the web process ingests from."""
    return queue.home / "spool"


def stage(queue: JobQueue, record: RunRecord) -> None:
    """Write the record's bundle where only ``publish`` sees it. Errors: StoreError, BundleError."""
    bundle.write_bundle(record, spool_of(queue) / STAGED)


def publish(queue: JobQueue, run_id: str) -> None:
    """Move the bundle of a done job into the spool; harmless to repeat and from several processes at once.

    Errors: StoreError when the folder can't be written; the bundle then waits for the next try.
    """
    spool = spool_of(queue)
    try:
        bundle.publish(spool / STAGED / run_id, spool / run_id)
    except FileNotFoundError:
        # Somebody was faster: the bundle is in the spool, or the web process has taken it from there.
        queue.mark_published(run_id)
        return
    except OSError as error:
        raise StoreError(
            f"run {run_id} can't be moved into {spool} ({error.strerror}); it waits in {STAGED}"
        ) from error
    queue.mark_published(run_id)


def publish_finished(queue: JobQueue) -> None:
    """Publish what a worker finished but had no time to move. Errors: StoreError."""
    for run_id in queue.unpublished():
        publish(queue, run_id)


def discard(queue: JobQueue, run_id: str) -> None:
    """Throw away the bundle of an attempt that did not end its job."""
    shutil.rmtree(spool_of(queue) / STAGED / run_id, ignore_errors=True)


def sweep(queue: JobQueue) -> None:
    """Remove what lost attempts staged. Errors: StoreError.

    The folder is listed before the queue is read: what a newer attempt writes meanwhile isn't on the list. An
    attempt that is not current never becomes so again, so whatever is removed here nobody will publish.
    """
    folder = spool_of(queue) / STAGED
    if not folder.is_dir():
        return
    entries = list(folder.iterdir())
    current = queue.current_runs()
    for entry in entries:
        written = entry.name.startswith(tuple(f"{bundle.TEMPORARY_PREFIX}{run_id}-" for run_id in current))
        if entry.name not in current and not written:
            shutil.rmtree(entry, ignore_errors=True)
