"""What the queue asks of the database under it: rows, transactions, and the clocks that jobs and leases are told by.

Two keep it: a SQLite file of one host (sqlite_file.py), and a PostgreSQL of several (postgres.py). The rules of
queue.py and owner_jobs.py are written once, in SQL that both understand but for what their modules translate.
"""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from importlib import resources
from typing import Any, ClassVar, Protocol

from routesparse.engine.errors import StoreError

Row = Mapping[str, Any]


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


class Cursor(Protocol):
    """What a statement answers."""

    @property
    def rowcount(self) -> int:
        """How many rows it changed."""

    def fetchone(self) -> Any:
        """The next row, or None."""

    def fetchall(self) -> list[Any]:
        """All rows."""


class Transaction(Protocol):
    """What may be done between the beginning and the end of a transaction."""

    def execute(self, sql: str, values: Sequence[Any] = (), /) -> Cursor:
        """One statement; values take the place of its question marks."""


class Database(ABC):
    """The queue's tables. Threads may share one."""

    beyond_host: ClassVar[bool]  # whether others may go on with the queue while this host can't reach it
    skip_locked: ClassVar[str]  # what a SELECT ends with so that two who take a row at once get two rows

    @abstractmethod
    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[Row]:
        """The rows of a read; writers don't block it. Errors: QueueAwayError, QueueGoneError, StoreError."""

    @abstractmethod
    def transaction(self) -> AbstractContextManager[Transaction]:
        """A write transaction. What it changes, and reads with ``skip_locked``, nobody else changes meanwhile.

        Errors: QueueBusyError, QueueFullError, QueueGoneError, QueueAwayError, StoreError; nothing was changed then.
        QueueUncertainError.
        """

    @abstractmethod
    def now(self) -> float:
        """Seconds since 1970, by the clock that all processes of the queue read."""

    @abstractmethod
    def lease_clock(self) -> float:
        """Seconds of the clock that leases are told by, also the same for all processes."""

    @abstractmethod
    def close(self) -> None:
        """Give the database back."""

    @abstractmethod
    def check_place(self) -> None:
        """Errors: QueuePlaceError where the folder of prompts and results is not this queue's, or is not mounted."""


def migrations() -> list[str]:
    """The scripts that make the tables, in their order; the number of a version is how many have run."""
    folder = resources.files("routesparse.engine.jobs") / "migrations"
    return [
        entry.read_text("utf-8")
        for entry in sorted(folder.iterdir(), key=lambda entry: entry.name)
        if entry.name.endswith(".sql")
    ]


def statements(script: str) -> Iterator[str]:
    """The statements of a script, one by one."""
    return (statement for statement in script.split(";\n") if statement.strip())
