"""How a job ends exactly once although its result lies in two places, a folder and a database.

1. The attempt's bundle is written into ``spool/.staged/<run id>``, which no reader looks into. A profile or calibration
   goes into ``home`` in there, under the path that it will have in the home folder.
2. ``JobQueue.finish`` commits "done" with that run id. This is the one moment at which the job ends; it is refused
   for a worker whose lease was taken, which then discards its bundle.
3. The bundle is renamed into the spool, a profile or calibration into its folder, and the row says so. A spool that
   several hosts share (ROUTESPARSE_SHARED) lies on another disk: there the bundle is copied beside it and renamed.
   Hosts that share the queue, too, stage in that folder: any of them can do what a lost one left undone.

Killed before 2, the job runs again and the staged folder is swept; between 2 and 3, ``publish_finished`` (every
worker's start and every turn of its loop) does the renaming. Run ids carry the attempt, so no two attempts ever
meet in one folder, and the store sees at most one run of a job.
"""

from __future__ import annotations

import errno
import os
import shutil
from pathlib import Path

from routesparse.engine import paths, shared_folder
from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.files.plain_files import sync
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.rows import RunRecord
from routesparse.engine.store import bundle

STAGED = ".staged"
_FOR_HOME = "home"


def spool_of(queue: JobQueue) -> Path:
    """The spool that holds what is staged, where every worker of the queue sees it."""
    return queue.place / "spool"


def stage(queue: JobQueue, record: RunRecord) -> None:
    """Write the record's bundle where only ``publish`` sees it.

    Errors: QueuePlaceError where the queue's folder is not mounted, StoreError, BundleError.
    """
    queue.check_place()  # or the bundle would be written on the empty mount point
    bundle.write_bundle(record, spool_of(queue) / STAGED)


def home_of(queue: JobQueue, run_id: str) -> Path:
    """An empty folder of this attempt that stands for ``queue.place``: ``publish`` moves its files there.

    Errors: QueuePlaceError where the queue's folder is not mounted, StoreError.
    """
    queue.check_place()
    folder = spool_of(queue) / STAGED / run_id / _FOR_HOME
    try:
        shutil.rmtree(folder.parent, ignore_errors=True)
        folder.mkdir(parents=True)
    except OSError as error:
        raise StoreError(
            f"{folder.parent} can't be made ({error.strerror}); check that it is writable"
        ) from error
    return folder


def flush_home(folder: Path) -> None:
    """Flush what lies under a folder of ``home_of`` to the disk, before the job is said to be done."""
    for path in folder.rglob("*"):
        sync(path)


def publish(queue: JobQueue, run_id: str) -> None:
    """Move what a done job made to where it is read; harmless to repeat and from several processes at once.

    Errors: StoreError when the folder can't be written or is not mounted; the result then waits for the next try.
    """
    spool = (paths.shared() or queue.place) / "spool"  # that the web process ingests from
    staged = spool_of(queue) / STAGED / run_id
    try:
        if (staged / _FOR_HOME).is_dir():
            _move_home(staged / _FOR_HOME, queue.place)
            shutil.rmtree(staged, ignore_errors=True)
        else:
            _hand_over(staged, spool / run_id)
    except FileNotFoundError as error:
        if staged.exists():  # what is gone is the shared folder, while the bundle was copied there
            raise StoreError(
                f"run {run_id} can't be moved into {spool} ({error.filename} is gone); it waits in {STAGED}"
            ) from error
        # Somebody was faster: the bundle is in the spool, or the web process has taken it from there.
    except (BundleError, OSError) as error:
        why = error.strerror if isinstance(error, OSError) else error
        raise StoreError(f"run {run_id} can't be moved into {spool} ({why}); it waits in {STAGED}") from error
    queue.check_place()  # what is not mounted looks as if somebody had been faster
    queue.mark_published(run_id)


def _hand_over(staged: Path, target: Path) -> None:
    """Errors: FileNotFoundError where it is staged no more, StoreError, OSError, BundleError for a damaged one."""
    shared_folder.check(target.parent)  # or the next line would make a spool on the empty mount point
    try:
        target.parent.mkdir(exist_ok=True)
    except OSError as error:
        raise StoreError(
            f"{target.parent} can't be made ({error.strerror}); check that its folder is there and writable"
        ) from error
    try:
        bundle.publish(staged, target)
    except OSError as error:
        if error.errno != errno.EXDEV:
            raise
        bundle.copy(staged, bundle.verify_bundle(staged), target)
        shutil.rmtree(staged, ignore_errors=True)


def _move_home(folder: Path, home: Path) -> None:
    """Each file takes the place of one of its name whole. Errors: OSError."""
    for file in folder.rglob("*"):
        if file.is_file():
            target = home / file.relative_to(folder)
            target.parent.mkdir(parents=True, exist_ok=True)
            os.replace(file, target)
            sync(target.parent)


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
