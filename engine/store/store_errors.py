"""What DuckDB's errors mean for the whole store, in our words.

DuckDB checks each block's checksum when it reads the block: a store with a damaged block opens, and fails where the
block is needed. An error in the middle of a commit stops the database of this process, which then refuses everything.
"""

from __future__ import annotations

import errno
import os
from pathlib import Path

from routesparse.engine.errors import StoreDamagedError, StoreError

_DAMAGED = ("Corrupt database file", "Corrupt WAL file", "Could not read enough bytes")
_STOPPED = "database has been invalidated"
_MOST_CHARACTERS = 300


def failed(database: Path, what: str, error: Exception, kept: str) -> str:
    """``what`` failed for this reason, and what was ``kept``; for a damaged or stopped store, what to do about it."""
    text = str(error)
    reason = text.splitlines()[0] if text else type(error).__name__
    if any(mark in text for mark in _DAMAGED):
        return f"{what}: {database.name} is damaged ({_cause(text)}); {kept}. {away(database)}"
    if _STOPPED in text:
        return f"{what}: the database stopped ({_cause(text)}); {kept}. Start the dashboard again"
    return f"{what} ({reason[:_MOST_CHARACTERS]}); {kept}"


def not_opened(database: Path, error: Exception) -> StoreError:
    """Why the store's file can't be opened, and what to do."""
    text = str(error)
    if "Could not set lock" in text:  # "lock" alone is in "a damaged block" too
        return StoreError(
            f"{database.name} is held by another process; stop the other dashboard or set ROUTESPARSE_HOME"
        )
    for code in (errno.EROFS, errno.EACCES, errno.EPERM, errno.ENOSPC, errno.EDQUOT):
        if os.strerror(code) in text:
            return StoreError(
                f"{database.name} can't be written in {database.parent} ({os.strerror(code)}); make the folder "
                "writable, with some space, or set ROUTESPARSE_HOME to another one"
            )
    cause = _cause(text)
    message = f"{database.name} can't be opened ({cause}). {away(database)}"
    return StoreDamagedError(message, database, cause)


def no_room(error: Exception) -> bool:
    """Whether the disk, or the user's share of it, is full."""
    return any(os.strerror(code) in str(error) for code in (errno.ENOSPC, errno.EDQUOT))


def away(database: Path) -> str:
    """What to do about a file of no use: the bundles hold all that a run is."""
    return (
        f"Stop the dashboard, move {database.name} and {database.name}.wal out of {database.parent} and start it "
        "again: it takes the runs in from their bundles, without names, notes, tags and pins"
    )


def _cause(text: str) -> str:
    """The line that names the damage, else the first."""
    lines = text.splitlines() or [""]
    return next((line for line in lines if any(mark in line for mark in _DAMAGED)), lines[0])[
        :_MOST_CHARACTERS
    ]
