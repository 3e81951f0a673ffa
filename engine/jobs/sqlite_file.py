"""The queue's SQLite file: opened, migrated, and its errors in our words. Standard library only.

WAL, so that pages read while a worker writes; ``synchronous = FULL``, so that a job that was confirmed survives a
power cut. One connection per JobQueue behind a lock: threads may share it.

Leases are told by a clock that nobody can set and that all processes of a machine share.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Sequence
from contextlib import closing, contextmanager
from functools import cache
from pathlib import Path
from typing import Any

from routesparse.engine.errors import StoreError
from routesparse.engine.files.plain_files import identity
from routesparse.engine.jobs import database
from routesparse.engine.jobs.database import Database, QueueBusyError, QueueFullError, QueueGoneError, Row

_OPEN_TRIES = 20
_OPEN_PAUSE_S = 0.1
_WAL_INDEX_BYTES = 32 * 1024
_DAMAGED = "{name} is damaged or no job queue ({found}); move it away and start again"


class SqliteFile(Database):
    """One file, which one process at a time writes."""

    beyond_host = False
    skip_locked = ""  # a transaction holds the whole file

    def __init__(self, file: Path, busy_timeout_s: float) -> None:
        """Open or create the file (readable by its user only) and bring its schema up to date.

        Errors: StoreError when it is no database, damaged, not writable, or of a newer schema; the file is then
        unchanged.
        """
        self.file = file
        self._lock = threading.RLock()
        _create(file)
        with self._clear_errors():
            self._connection = sqlite3.connect(
                file, timeout=busy_timeout_s, isolation_level=None, check_same_thread=False
            )
        self._identity = identity(file)
        try:
            with self._clear_errors():
                self._connection.row_factory = sqlite3.Row
                _use_wal(self._connection)
                self._connection.execute("PRAGMA synchronous = FULL")
                self._check_whole()
                self._migrate()
                self._check_columns()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Give the file back; the last one to do so also folds the WAL into it."""
        with self._lock:
            self._connection.close()

    def now(self) -> float:
        """See ``Database``."""
        return time.time()

    def lease_clock(self) -> float:
        """See ``Database``."""
        return time.monotonic()

    def check_place(self) -> None:
        """See ``Database``: the file's own folder, which every use of the file looks for."""

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """See ``Database``."""
        self._check_there()
        with self._lock, self._clear_errors():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """See ``Database``: the file's lock is taken at its beginning, so what it reads stays true."""
        self._check_there()
        with self._lock, self._clear_errors():
            self._connection.execute("BEGIN IMMEDIATE")
            try:
                yield self._connection
                self._connection.execute("COMMIT")
            except BaseException:
                if self._connection.in_transaction:
                    self._connection.execute("ROLLBACK")
                raise

    def _check_there(self) -> None:
        if identity(self.file) != self._identity:
            raise QueueGoneError(
                f"{self.file} was deleted or replaced while it was in use; put its folder back, or start again to "
                "begin with an empty queue"
            )

    def _migrate(self) -> None:
        found = database.migrations()
        version = self._version()
        if version == len(found):
            return
        with self.transaction() as connection:
            # Somebody else may have migrated between the look above and this lock.
            version = self._version()
            if version > len(found):
                raise StoreError(
                    f"{self.file.name} has schema {version}, this version knows {len(found)}; update RouteSparse"
                )
            for number, script in enumerate(found[version:], start=version + 1):
                _execute(connection, script)
                connection.execute(f"PRAGMA user_version = {number}")

    def _check_whole(self) -> None:
        """Refuse a damaged file before anything is read from it or written to it."""
        (told,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if told != "ok":
            raise StoreError(_DAMAGED.format(name=self.file.name, found=told))

    def _check_columns(self) -> None:
        """One flipped bit may rename a column, which SQLite takes for whole."""
        if _columns(self._connection) != _columns_made(tuple(database.migrations())):
            raise StoreError(_DAMAGED.format(name=self.file.name, found="its tables have other columns"))

    def _version(self) -> int:
        return int(self._connection.execute("PRAGMA user_version").fetchone()[0])

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except sqlite3.Error as error:
            raise _in_our_words(error, self.file) from error
        except UnicodeDecodeError as error:  # sqlite3 quotes what it could not read, as if it were text
            raise StoreError(_DAMAGED.format(name=self.file.name, found=error.reason)) from error


def _create(file: Path) -> None:
    """An empty file of mode 600. An existing one isn't opened: closing it would drop this process's SQLite locks."""
    if file.exists():
        return
    try:
        file.parent.mkdir(parents=True, exist_ok=True)
        os.close(os.open(file, os.O_CREAT | os.O_EXCL | os.O_RDWR, 0o600))
    except OSError as error:
        if file.exists():  # another process was faster
            return
        if error.errno in (errno.ENOSPC, errno.EDQUOT):
            raise QueueFullError(
                f"the disk is full: {file} can't be created; free space and retry"
            ) from error
        raise StoreError(
            f"{file} can't be created ({error.strerror}); check that its folder is writable"
        ) from error


def _use_wal(connection: sqlite3.Connection) -> None:
    """Changing the journal doesn't wait for the busy timeout when another process does the same: try again."""
    for remaining in reversed(range(_OPEN_TRIES)):
        try:
            connection.execute("PRAGMA journal_mode = WAL").fetchone()
        except sqlite3.OperationalError as error:
            if _code(error) != sqlite3.SQLITE_BUSY or not remaining:
                raise
            time.sleep(_OPEN_PAUSE_S)
        else:
            return


def _execute(connection: sqlite3.Connection, script: str) -> None:
    """Each statement on its own: sqlite3's executescript would end the transaction."""
    for statement in database.statements(script):
        connection.execute(statement)


def _columns(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Table, column, type, NOT NULL and primary key of each column."""
    sql = (
        'SELECT m.name, c.name, c.type, c."notnull", c.pk FROM sqlite_master m, pragma_table_info(m.name) c '
        "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY m.name, c.cid"
    )
    return [tuple(row) for row in connection.execute(sql)]


@cache
def _columns_made(scripts: tuple[str, ...]) -> list[tuple[object, ...]]:
    """The columns that these migrations make."""
    with closing(sqlite3.connect(":memory:")) as connection:
        for script in scripts:
            _execute(connection, script)
        return _columns(connection)


def _code(error: sqlite3.Error) -> int:
    """The primary result code; the extended ones add bits above."""
    return getattr(error, "sqlite_errorcode", 0) & 0xFF


def _in_our_words(error: sqlite3.Error, file: Path) -> StoreError:
    code, name = _code(error), file.name
    if code in (sqlite3.SQLITE_BUSY, sqlite3.SQLITE_LOCKED):
        return QueueBusyError(f"the job queue ({name}) is in use by another process; try again in a moment")
    # Where the shared index of the WAL finds no room, SQLite speaks of input and output.
    if code == sqlite3.SQLITE_FULL or (code == sqlite3.SQLITE_IOERR and _no_room(file.parent)):
        return QueueFullError(
            f"the disk is full: the job queue ({name}) can't be written; free space and retry"
        )
    if code in (sqlite3.SQLITE_READONLY, sqlite3.SQLITE_CANTOPEN):
        return StoreError(
            f"the job queue can't be written in {file.parent} ({error}); make the folder writable, or set "
            "ROUTESPARSE_HOME to another one"
        )
    if code in (sqlite3.SQLITE_NOTADB, sqlite3.SQLITE_CORRUPT):
        return StoreError(_DAMAGED.format(name=name, found=error))
    return StoreError(f"the job queue ({name}) can't be used ({error}); nothing was changed")


def _no_room(folder: Path) -> bool:
    return shutil.disk_usage(folder).free < _WAL_INDEX_BYTES
