"""The queue that the environment names: the SQLite file of a home, or the PostgreSQL of several hosts (scale/)."""

from __future__ import annotations

from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.database import Database, SqliteFile

FILE = "jobs.sqlite3"


def open_database(home: Path, busy_timeout_s: float) -> tuple[Database, Path]:
    """The queue's database, and the folder in which prompts and what jobs made lie: one that all its workers see.

    Errors: ConfigError for a variable that is wrong or missing, StoreError.
    """
    address, shared = paths.queue(), paths.shared()
    if address is None:
        return SqliteFile(home / FILE, busy_timeout_s), home
    if shared is None:
        raise ConfigError(
            "ROUTESPARSE_QUEUE is set and ROUTESPARSE_SHARED is not; set it to the folder that all hosts of this "
            "queue see"
        )
    from routesparse.engine.scale.queue import PostgresQueue

    return PostgresQueue(address, shared, busy_timeout_s), shared


def exists(home: Path) -> bool:
    """Whether there is a queue to look at: a file that somebody made, or a server."""
    return paths.queue() is not None or (home / FILE).exists()
