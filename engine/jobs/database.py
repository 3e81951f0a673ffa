"""The database under the queue: the SQLite file of one host, and what scale/queue.py gives several hosts instead.

The rules of queue.py and owner_jobs.py are written once, in SQL that both understand; schema.sql has the tables.

Of the file: WAL, so that pages read while a worker writes; ``synchronous = FULL``, so that a job that was confirmed
survives a power cut; one connection per JobQueue behind a lock, so that threads may share it.
"""

from __future__ import annotations

import errno
import os
import shutil
import sqlite3
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, closing, contextmanager
from functools import cache
from importlib import resources
from pathlib import Path
from typing import Any, Protocol

from routesparse.engine.errors import StoreError
from routesparse.engine.files.plain_files import identity

Row = Mapping[str, Any]
VERSION = 5  # of the tables: one more with every change of schema.sql
_OPEN_TRIES = 20
_OPEN_PAUSE_S = 0.1
_WAL_INDEX_BYTES = 32 * 1024
_DAMAGED = "{name} is damaged or no job queue ({found}); move it away and start again"


class QueueBusyError(StoreError):
    """Another process holds the queue's lock for longer than the busy timeout; try again."""


class QueueFullError(StoreError):
    """The disk under the queue is full; nothing was changed."""


class QueueGoneError(StoreError):
    """The queue was deleted or replaced while it was in use: what is read or written here nobody else sees."""


class QueueAwayError(StoreError):
    """The queue's server can't be reached now; nothing was changed."""


class QueueUncertainError(StoreError):
    """The connection was cut while a change was being confirmed: it was made, or nothing was changed."""


class QueuePlaceError(StoreError):
    """The folder of prompts and results is not this queue's, or is not mounted."""


class Database(Protocol):
    """The queue's tables. Threads may share one.

    Errors of ``rows`` and ``transaction``: QueueBusyError, QueueFullError, QueueGoneError, QueueAwayError, StoreError;
    nothing was changed then. QueueUncertainError, of a transaction.
    """

    beyond_host: bool  # whether others may go on with the queue while this host can't reach it
    skip_locked: str  # what a SELECT ends with so that two who take a row at once get two rows

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows of a read; writers don't block it. Values take the place of question marks."""

    def transaction(self) -> AbstractContextManager[Any]:
        """A connection with ``execute(sql, values)``.

        What it changes, and reads with ``skip_locked``, nobody else changes meanwhile.
        """

    def now(self) -> float:
        """Seconds since 1970, by the clock that all processes of the queue read."""

    def lease_clock(self) -> float:
        """Seconds of the clock that leases are told by, also the same for all processes."""

    def close(self) -> None:
        """Give the database back."""

    def check_place(self) -> None:
        """Errors: QueuePlaceError where the folder of prompts and results is not this queue's, or is not mounted."""


def statements() -> list[str]:
    """What makes the tables, one statement at a time."""
    script = (resources.files("routesparse.engine.jobs") / "schema.sql").read_text("utf-8")
    return [statement for statement in script.split(";\n") if statement.strip()]


def check_version(found: int, name: str, cure: str) -> None:
    """Errors: StoreError for tables of another version; ``cure``: what to do about an older one."""
    if found > VERSION:
        raise StoreError(f"{name} has schema {found}, this version knows {VERSION}; update RouteSparse")
    if found < VERSION:
        raise StoreError(
            f"{name} has schema {found}, from before the first release, and this version reads {VERSION}; nothing was "
            f"changed. {cure} and start again: runs stay, jobs that wait have to be submitted anew"
        )


class SqliteFile:
    """See ``Database``: one file, which one process at a time writes."""

    beyond_host = False
    skip_locked = ""  # a transaction holds the whole file

    def __init__(self, file: Path, busy_timeout_s: float) -> None:
        """Open or create the file, readable by its user only.

        Errors: StoreError when it is no database, damaged, not writable, or of another version; it is then unchanged.
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
                self._make()
                self._check_columns()
        except BaseException:
            self._connection.close()
            raise

    def close(self) -> None:
        """Give the file back; the last one to do so also folds the WAL into it."""
        with self._lock:
            self._connection.close()

    def now(self) -> float:
        return time.time()

    def lease_clock(self) -> float:
        return time.monotonic()  # which nobody can set, the same for all processes of a machine

    def check_place(self) -> None:
        """A file's own folder, which every use of the file looks for."""

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        self._check_there()
        with self._lock, self._clear_errors():
            return self._connection.execute(sql, values).fetchall()

    @contextmanager
    def transaction(self) -> Iterator[sqlite3.Connection]:
        """The file's lock is taken at its beginning, so what it reads stays true."""
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

    def _make(self) -> None:
        if not self._version():
            with self.transaction() as connection:
                if not self._version():  # nobody else was faster
                    _make_tables(connection)
                    connection.execute(f"PRAGMA user_version = {VERSION}")
        check_version(self._version(), self.file.name, f"Move {self.file} away")

    def _check_whole(self) -> None:
        """Refuse a damaged file before anything is read from it or written to it."""
        (told,) = self._connection.execute("PRAGMA integrity_check(1)").fetchone()
        if told != "ok":
            raise StoreError(_DAMAGED.format(name=self.file.name, found=told))

    def _check_columns(self) -> None:
        """One flipped bit may rename a column, which SQLite takes for whole."""
        if _columns(self._connection) != _columns_made():
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


def _make_tables(connection: sqlite3.Connection) -> None:
    """Each statement on its own: sqlite3's executescript would end the transaction."""
    for statement in statements():
        connection.execute(statement)


def _columns(connection: sqlite3.Connection) -> list[tuple[object, ...]]:
    """Table, column, type, NOT NULL and primary key of each column."""
    sql = (
        'SELECT m.name, c.name, c.type, c."notnull", c.pk FROM sqlite_master m, pragma_table_info(m.name) c '
        "WHERE m.type = 'table' AND m.name NOT LIKE 'sqlite_%' ORDER BY m.name, c.cid"
    )
    return [tuple(row) for row in connection.execute(sql)]


@cache
def _columns_made() -> list[tuple[object, ...]]:
    with closing(sqlite3.connect(":memory:")) as connection:
        _make_tables(connection)
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
