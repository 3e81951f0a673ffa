"""Whether a worker's process still lives: it holds a lock on ``workers/<worker>.lock`` from its start to its end.

The kernel drops the lock with the process, also after ``kill -9``, so that a killed worker's job need not wait for its
lease. A file without a lock is a dead worker's and harmless; no file (a worker that shares the queue but not this
folder's locks) says nothing, and the lease decides.

So a killed worker's job goes on at once, and no clock is compared. A worker that exits with 2 says that starting
again would not help; the Procfile's loop then stops.
"""

from __future__ import annotations

import fcntl
import json
import os
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from dataclasses import asdict, dataclass
from pathlib import Path

from routesparse.engine.errors import StoreError
from routesparse.engine.schema import Line, Positive, checked, from_json

_FOLDER = "workers"
_SUFFIX = ".lock"


@dataclass(frozen=True)
class Device:
    """What a worker's jobs run on: the GPU's or the CPU's name, as profiles keep it, and all of its memory."""

    name: Line
    on_gpu: bool
    memory_bytes: Positive

    @property
    def dtype(self) -> str:
        """What models are loaded in there."""
        return "bfloat16" if self.on_gpu else "float32"

    def to_json(self) -> str:
        """What ``read_device`` reads."""
        return json.dumps(asdict(self))


@contextmanager
def present(home: Path, worker: str) -> Iterator[None]:
    """Be seen as alive inside the block. Errors: StoreError."""
    file = _file(home, worker)
    # Renamed when it is locked: nobody ever sees a live worker's file without its lock.
    partial = file.with_name(f".{worker}.partial")
    try:
        file.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
        descriptor = os.open(partial, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600)
        try:
            fcntl.flock(descriptor, fcntl.LOCK_EX)
            os.rename(partial, file)
        except OSError:
            os.close(descriptor)
            partial.unlink(missing_ok=True)
            raise
    except OSError as error:
        raise StoreError(
            f"{file.parent} can't be written ({error.strerror}); check ROUTESPARSE_HOME"
        ) from error
    try:
        yield
    finally:
        # The file stays: should this worker still hold a job, the others now see that it is gone.
        os.close(descriptor)


def read_device(text: str | None) -> Device | None:
    """A worker's device; None where it has not said, or another version wrote something else."""
    try:
        return checked(Device, from_json(text or "null"))
    except ValueError:
        return None


def lives(home: Path, worker: str) -> bool | None:
    """Whether the worker's process lives; None where this home knows no such worker."""
    try:
        descriptor = os.open(_file(home, worker), os.O_RDONLY)
    except FileNotFoundError:
        return None
    try:
        # Shared, so that two who look at once don't take each other for the worker.
        fcntl.flock(descriptor, fcntl.LOCK_SH | fcntl.LOCK_NB)
    except BlockingIOError:
        return True
    else:
        return False
    finally:
        os.close(descriptor)


def is_gone(home: Path, worker: str) -> bool:
    """Whether the worker's process has certainly ended."""
    return lives(home, worker) is False


def dead(home: Path, needed: Collection[str]) -> list[str]:
    """The workers whose processes have certainly ended, but for those that still count as running a job."""
    names = (file.name.removesuffix(_SUFFIX) for file in (Path(home) / _FOLDER).glob(f"*{_SUFFIX}"))
    return [worker for worker in names if worker not in needed and is_gone(home, worker)]


def forget(home: Path, workers: Collection[str]) -> None:
    """Remove the files of dead workers."""
    for worker in workers:
        _file(home, worker).unlink(missing_ok=True)


def _file(home: Path, worker: str) -> Path:
    return Path(home) / _FOLDER / f"{worker}{_SUFFIX}"
