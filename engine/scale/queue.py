"""The queue on PostgreSQL, for workers and dashboards of several hosts, in the schema ``routesparse_queue``.

The server's clock tells leases and times, so hosts need not agree on theirs. A job is taken with FOR UPDATE SKIP
LOCKED; every other change names the state that it expects, and waits for whoever changes the same job. A session that
stops inside a transaction is ended by the server, which gives its locks back.

A cut connection is made anew at the next use. What was begun is then undone by the server, and said so; only while a
change is being confirmed nobody knows (QueueUncertainError), and every caller may repeat its change or ask.

psycopg comes with `make ducklake`; only this module imports it.
"""

from __future__ import annotations

import importlib
import re
import secrets
import sys
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING, Any

from routesparse.engine import shared_folder
from routesparse.engine.errors import ConfigError, StoreError
from routesparse.engine.jobs import database
from routesparse.engine.scale import postgres

if TYPE_CHECKING:
    import psycopg

PREFIX = "postgres:"
VARIABLE = "ROUTESPARSE_QUEUE"
IDENTITY = "queue_identity"
_SCHEMA = "routesparse_queue"
_LOCK = 0x526F757465_51  # ours among the advisory locks of the database, and not the store's
_MAKING_LOCK_S = 60
# libpq's words: a host that is gone without a word is noticed within seconds, not hours.
_PATIENCE = {
    "connect_timeout": "5",
    "keepalives_idle": "5",
    "keepalives_interval": "2",
    "keepalives_count": "3",
    "tcp_user_timeout": "10000",
}
_STOPPED_S = 15  # a session that does nothing inside a transaction for so long is ended
_BUSY = ("55P03", "40P01", "40001")  # lock timeout, deadlock, serialization
_FULL = "53100"
_GONE = ("42P01", "3F000")  # no such table, no such schema
_AWAY = re.compile(r"08|57P0[1-5]|25P03")  # the connection, a server that starts or stops, a stopped session
_PASSING = re.compile(  # a server that starts or stops, or whose connections are all taken
    r"starting up|not yet accepting|shutting down|recovery mode|too many (?:clients|connections)|"
    r"remaining connection slots"
)
_MOST_CHARACTERS = 300


class PostgresQueue:
    """See ``Database``: one connection behind a lock, as the file has."""

    beyond_host = True
    skip_locked = " FOR UPDATE SKIP LOCKED"

    def __init__(self, address: str, place: Path, busy_timeout_s: float) -> None:
        """Connect, make the tables where there are none, and know the folder that goes with them.

        address: ``postgres:`` and PostgreSQL's key=value words; the password belongs into ~/.pgpass or PGPASSWORD.
        place: the folder that all hosts see, for prompts and what jobs made.
        Errors: ConfigError for another address; StoreError without psycopg, for another version, for another queue's
        folder; QueueAwayError.
        """
        words = postgres.words(address, PREFIX, VARIABLE)
        self._psycopg = _driver()
        try:
            self._words = {**_PATIENCE, **self._psycopg.conninfo.conninfo_to_dict(words)}
        except self._psycopg.Error as error:
            raise ConfigError(
                f"{VARIABLE} can't be read ({_first_line(error)}); pass words such as host=HOST dbname=NAME user=NAME"
            ) from None
        self._place, self._busy_timeout_s = place, busy_timeout_s
        self._lock = threading.RLock()
        self._connection: psycopg.Connection[dict[str, Any]] | None = None
        try:
            self._make()
        except BaseException:
            self.close()
            raise

    def close(self) -> None:
        """Give the connection back."""
        with self._lock:
            if self._connection is not None:
                self._connection.close()
            self._connection = None

    def rows(self, sql: str, values: Sequence[Any] = ()) -> list[database.Row]:
        with self._lock, self._clear_errors():
            return list(self._asked(sql, values).fetchall())

    @contextmanager
    def transaction(self) -> Iterator[PostgresQueue._Inside]:
        """See ``Database``; READ COMMITTED, whose UPDATE looks again at a row that it had to wait for."""
        with self._lock, self._clear_errors():
            self._asked("BEGIN")
            assert self._connection is not None
            connection = self._connection
            try:
                yield self._Inside(connection)
            except BaseException:
                self._undo(connection)
                raise
            self._commit(connection)

    def now(self) -> float:
        """The server's clock; not the transaction's beginning."""
        return float(self.rows("SELECT extract(epoch FROM clock_timestamp())::float8 AS now")[0]["now"])

    def lease_clock(self) -> float:
        """See ``Database``. Setting the server's clock forward ends leases early; their workers then give up."""
        return self.now()

    def check_place(self) -> None:
        file = self._place / IDENTITY
        if not shared_folder.holds(file, self._token):
            raise database.QueuePlaceError(
                f"{file} is not there or another queue's; is the shared folder mounted? Check ROUTESPARSE_SHARED, "
                "which must be the folder that this queue was made with"
            )

    class _Inside:
        """What may be done inside a transaction."""

        def __init__(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
            self._connection = connection

        def execute(self, sql: str, values: Sequence[Any] = (), /) -> Any:
            return self._connection.execute(_translated(sql), [_storable(value) for value in values])

    def _asked(self, sql: str, values: Sequence[Any] = ()) -> Any:
        """One statement. Outside of a transaction it is asked again where the connection was cut meanwhile."""
        connection = self._connected()
        again = connection.info.transaction_status == self._psycopg.pq.TransactionStatus.IDLE
        try:
            return self._Inside(connection).execute(sql, values)
        except self._psycopg.Error as error:
            if not (again and self._is_cut(error)):
                raise
            self.close()
            return self._Inside(self._connected()).execute(sql, values)

    def _connected(self) -> psycopg.Connection[dict[str, Any]]:
        """The connection, made anew where the last one was cut. Errors: QueueAwayError."""
        if self._connection is not None and not self._connection.closed:
            return self._connection
        try:
            connection = self._psycopg.connect(
                **self._words,
                autocommit=True,
                row_factory=self._psycopg.rows.dict_row,
                prepare_threshold=None,
                client_encoding="utf-8",
            )
        except self._psycopg.Error as error:
            raise _unreachable(error) from error
        self._connection = connection
        for setting, value in (
            ("search_path", _SCHEMA),
            ("lock_timeout", f"{self._busy_timeout_s}s"),
            ("idle_in_transaction_session_timeout", f"{_STOPPED_S}s"),
        ):
            connection.execute("SELECT set_config(%s, %s, false)", (setting, value))
        return connection

    def _commit(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        """Errors: QueueUncertainError where the connection is cut before the answer, psycopg.Error."""
        try:
            connection.execute("COMMIT")
        except self._psycopg.Error as error:
            if not self._is_cut(error):
                self._undo(connection)
                raise
            self.close()
            raise database.QueueUncertainError(
                "the connection to PostgreSQL was cut while the job queue confirmed a change; it was made, or nothing "
                "was changed. Look at page Jobs before you ask for it again"
            ) from error

    def _undo(self, connection: psycopg.Connection[dict[str, Any]]) -> None:
        """Roll back; a connection that can't do so is cut, and its server does it."""
        try:
            connection.execute("ROLLBACK")
        except self._psycopg.Error:
            self.close()

    def _is_cut(self, error: psycopg.Error) -> bool:
        """Whether the error says that the connection is of no use any more."""
        if error.sqlstate is not None:
            return _AWAY.match(error.sqlstate) is not None
        return isinstance(error, self._psycopg.OperationalError | self._psycopg.InterfaceError)

    @contextmanager
    def _clear_errors(self) -> Iterator[None]:
        try:
            yield
        except self._psycopg.Error as error:
            raise self._in_our_words(error) from error

    def _in_our_words(self, error: psycopg.Error) -> StoreError:
        if self._is_cut(error):
            self.close()
            return _unreachable(error)
        if error.sqlstate in _BUSY:
            return database.QueueBusyError(
                "the job queue is in use by another process; try again in a moment"
            )
        if error.sqlstate == _FULL:
            return database.QueueFullError("the disk of PostgreSQL is full; free space there and retry")
        if error.sqlstate in _GONE:
            return database.QueueGoneError(
                f"the job queue's tables (schema {_SCHEMA}) were deleted while they were in use; restore them, or "
                "start again to begin with an empty queue"
            )
        return StoreError(
            f"the job queue in PostgreSQL can't be used ({_first_line(error)}); nothing was changed"
        )

    def _make(self) -> None:
        """Errors: StoreError for tables of another version or another queue's folder; nothing was changed then."""
        about = self._about()
        if about is None:
            with self.transaction() as connection:
                connection.execute("SELECT set_config('lock_timeout', ?, true)", (f"{_MAKING_LOCK_S}s",))
                connection.execute("SELECT pg_advisory_xact_lock(?)", (_LOCK,))
                # Somebody else may have been faster between the look above and this lock.
                about = self._about() or self._begin(connection)
        database.check_version(about["version"], "the job queue in PostgreSQL", "Name another database")
        self._token = str(about["token"])
        self.check_place()

    def _about(self) -> database.Row | None:
        """The queue's version and the token of its folder; None where there is no queue yet."""
        # Not to_regclass: inside a transaction it does not see what another process has just made.
        sql = "SELECT 1 FROM pg_catalog.pg_tables WHERE schemaname = ? AND tablename = 'about'"
        found = self.rows("SELECT version, token FROM about") if self.rows(sql, (_SCHEMA,)) else []
        return found[0] if found else None

    def _begin(self, connection: PostgresQueue._Inside) -> database.Row:
        """Make the tables, and mark the folder that goes with them."""
        token = secrets.token_hex(16)
        connection.execute(f"CREATE SCHEMA IF NOT EXISTS {_SCHEMA}")
        connection.execute("CREATE TABLE about (version BIGINT NOT NULL, token TEXT NOT NULL)")
        for statement in database.statements():
            connection.execute(_for_postgres(statement))
        connection.execute("INSERT INTO about VALUES (?, ?)", (database.VERSION, token))
        self._mark(token)
        return {"version": database.VERSION, "token": token}

    def _mark(self, token: str) -> None:
        """Leave the new queue's token in its folder. Errors: StoreError, also where another queue's lies there."""
        file = self._place / IDENTITY
        try:
            self._place.mkdir(parents=True, exist_ok=True)
            with file.open("x", encoding="utf-8") as written:
                written.write(token)
        except FileExistsError:
            raise StoreError(
                f"{self._place} is the folder of another job queue; set ROUTESPARSE_SHARED to another, or delete "
                f"{file} if that queue is gone for good"
            ) from None
        except OSError as error:
            raise StoreError(
                f"{error.filename} can't be made ({error.strerror}); check ROUTESPARSE_SHARED"
            ) from error


def installed() -> bool:
    """Whether `make ducklake` has been run here."""
    return (postgres.FOLDER / "psycopg").is_dir()


def _driver() -> Any:
    """psycopg. Errors: StoreError where it is not installed."""
    if not installed():
        raise StoreError(
            f"{VARIABLE} needs psycopg in {postgres.FOLDER}; run `make ducklake`, or unset it to keep the queue in a "
            "file of this machine"
        )
    if str(postgres.FOLDER) not in sys.path:
        sys.path.append(str(postgres.FOLDER))
    return importlib.import_module("psycopg")


@cache
def _translated(sql: str) -> str:
    """The statement in PostgreSQL's words and psycopg's marks."""
    return sql.replace(" IS ?", " IS NOT DISTINCT FROM ?").replace("%", "%%").replace("?", "%s")


def _storable(value: Any) -> Any:
    """PostgreSQL keeps no NUL character, which a name or a message may hold."""
    return value.replace("\0", "\N{REPLACEMENT CHARACTER}") if isinstance(value, str) else value


def _for_postgres(script: str) -> str:
    """The types of schema.sql: its integers have 64 bits and its numbers are doubles, as in SQLite."""
    plain = re.sub(r"--[^\n]*", "", script)
    plain = plain.replace(
        "INTEGER PRIMARY KEY AUTOINCREMENT", "BIGINT GENERATED ALWAYS AS IDENTITY PRIMARY KEY"
    )
    return re.sub(r"\bREAL\b", "DOUBLE PRECISION", re.sub(r"\bINTEGER\b", "BIGINT", plain))


def _unreachable(error: psycopg.Error) -> database.QueueAwayError:
    """What the server itself says, such as of a password or a missing database, is told; an address is not."""
    said = re.search(r"FATAL:\s+(.*)", str(error))
    if said and _PASSING.search(said[1]):
        return database.QueueAwayError(
            f"PostgreSQL takes no connection for the job queue now ({said[1][:_MOST_CHARACTERS]}); nothing was "
            "changed. Try again in a moment"
        )
    if said:
        return database.QueueAwayError(
            f"PostgreSQL refuses the job queue ({said[1][:_MOST_CHARACTERS]}); nothing was changed. Correct "
            f"{VARIABLE}, or put the password into ~/.pgpass or PGPASSWORD"
        )
    return database.QueueAwayError(
        f"PostgreSQL, which keeps the job queue, can't be reached; nothing was changed. Start it, or correct {VARIABLE}"
    )


def _first_line(error: BaseException) -> str:
    lines = str(error).splitlines()
    return (lines[0] if lines else type(error).__name__)[:_MOST_CHARACTERS]
