"""Reading files that others may have put there: plain files only, and never more than a bound."""

from __future__ import annotations

import errno
import os
import re
import stat
from pathlib import Path
from typing import Any, BinaryIO

from routesparse.engine.schema import from_json

MOST_VALUES = 1 << 19  # of a JSON file, or of one line of values; the largest that ships has 16,000
_TEXTS = re.compile(r'"[^"\\]*(?:\\.[^"\\]*)*"', re.DOTALL)
_GROWN_BYTES = 1 << 20  # read at once of what a file grew by since it was opened


def state_of(path: Path) -> tuple[int, ...] | None:
    """What differs once a file was written or replaced: a key for what was read of it. None where it can't be seen."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns


def open_plain(path: str | Path, *, follow_links: bool = True) -> BinaryIO:
    """Open a plain file to read; a pipe is not waited for, a device is not opened for long.

    Errors: OSError whose ``strerror`` says what is wrong, with errno EINVAL for what is no plain file or no path,
    ELOOP for a link where none is followed.
    """
    flags = os.O_RDONLY | os.O_NONBLOCK | os.O_CLOEXEC | (0 if follow_links else os.O_NOFOLLOW)
    try:
        descriptor = os.open(path, flags)
    except ValueError:  # a NUL in the name
        raise OSError(errno.EINVAL, "no file can have this name", str(path)) from None
    mode = os.fstat(descriptor).st_mode
    if stat.S_ISREG(mode):
        return open(descriptor, "rb")
    os.close(descriptor)
    if stat.S_ISDIR(mode):
        raise IsADirectoryError(errno.EISDIR, "it is a folder", str(path))
    raise OSError(errno.EINVAL, "it is no plain file but a pipe or a device", str(path))


def identity(path: Path) -> tuple[int, int] | None:
    """Which file lies there now, so that one that was deleted or replaced is noticed; None for none."""
    try:
        found = path.stat()
    except OSError:
        return None
    return found.st_dev, found.st_ino


def read_bounded(path: str | Path, most_bytes: int, *, follow_links: bool = True) -> bytes:
    """The whole content of a plain file; of one that grows meanwhile no more than the bound is read.

    Errors: those of ``open_plain``, and OSError with errno EFBIG for more than ``most_bytes``.
    """
    with open_plain(path, follow_links=follow_links) as handle:
        # By its size: Python takes memory for all that a read may return before it reads the first byte.
        content = handle.read(min(os.fstat(handle.fileno()).st_size, most_bytes) + 1)
        while len(content) <= most_bytes:
            more = handle.read(min(_GROWN_BYTES, most_bytes + 1 - len(content)))
            if not more:
                break
            content += more
    if len(content) > most_bytes:
        size = f"{most_bytes >> 20} MB" if most_bytes >= 1 << 20 else f"{most_bytes:,} bytes"
        raise OSError(errno.EFBIG, f"it has more than {size}", str(path))
    return content


def sync(path: Path) -> None:
    """Flush a file's content, or a folder's entries, to the disk. Errors: OSError."""
    descriptor = os.open(path, os.O_RDONLY)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def write_synced(path: Path, content: bytes) -> None:
    """Write a new file, for this user only, and flush it to the disk. Errors: OSError."""
    with open(os.open(path, os.O_CREAT | os.O_EXCL | os.O_WRONLY, 0o600), "wb") as handle:
        handle.write(content)
        handle.flush()
        os.fsync(handle.fileno())


def read_json(path: Path, most_bytes: int) -> Any:
    """The value of a JSON file. Errors: OSError, ValueError for too many values, those of ``schema.from_json``."""
    return from_json(few_values(read_bounded(path, most_bytes).decode("utf-8")))


def few_values(text: str) -> str:
    """JSON text itself. Errors: ValueError for more than MOST_VALUES values: an empty list takes 64 bytes for three."""
    if _marks(text) > MOST_VALUES and _marks(_TEXTS.sub("", text)) > MOST_VALUES:
        raise ValueError(f"it holds more than {MOST_VALUES:,} values")
    return text


def _marks(text: str) -> int:
    return sum(map(text.count, ",[{"))
