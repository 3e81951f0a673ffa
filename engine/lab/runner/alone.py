"""One evaluation in a folder at a time: two would mix their job.json and what they append to predictions.jsonl.

The first one holds a lock on ``evaluate.lock``, which the kernel drops with the process, also after ``kill -9``; the
file stays and is harmless. It says who holds the lock. Reading (``routesparse report``) asks for none.
"""

from __future__ import annotations

import errno
import fcntl
import os
import socket
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TextIO

from routesparse.engine.errors import InputError, shortened
from routesparse.engine.lab import study

FILE = "evaluate.lock"
_MOST_CHARACTERS = 200
_NO_LOCKS = (errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP)  # such a network file system has none


@contextmanager
def alone_in(folder: Path) -> Iterator[None]:
    """Be the only evaluation that writes into the folder, which is made. Errors: InputError where another one is."""
    folder.mkdir(parents=True, exist_ok=True)
    # Kept open by this process alone: Python's files are closed in the programs that it starts.
    with open(folder / FILE, "a+", encoding="utf-8", errors="replace") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            raise InputError(
                f"{folder} is in use by another evaluation{_holder(file)}; wait until it ends or pass another --out; "
                f"`routesparse report` shows what it has so far"
            ) from None
        except OSError as error:
            if error.errno not in _NO_LOCKS:
                raise
            study.note(f"{folder} can't be locked ({error.strerror}): start no second evaluation in it")
        file.truncate(0)
        file.write(f"process {os.getpid()} on {socket.gethostname()}\n")
        file.flush()
        yield


def _holder(file: TextIO) -> str:
    """Who holds the lock, as far as the file says it already."""
    file.seek(0)
    said = file.read(_MOST_CHARACTERS).strip()
    return f" ({shortened(said)})" if said else ""
