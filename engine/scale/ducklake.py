"""The store for many processes on several hosts: DuckLake, its catalogue in PostgreSQL, its rows in a shared folder.

A DuckDB in the memory of this process has the lake attached under the name ``lake``, and views of its tables under
their own names, so that every query of the file's store is asked here too. The bundle stays what is kept: either store
can be made anew from the bundles.

DuckLake (format 1.0) has NOT NULL and no keys: that a run is stored once, and under a number of its own, is held by a
lock. Whoever writes holds PostgreSQL's advisory lock from before the look whether the run is there until its rows are
committed; a process that ends loses its connection, and with it the lock. Numbers come from a sequence in PostgreSQL.

``make ducklake`` installs the extensions from .ci/ducklake.lock into a folder that only this module looks into. All
hosts must run the same version: who brings the tables up to date stops those of the version before.
"""

from __future__ import annotations

import hashlib
import re
import secrets
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.compute as pc

from routesparse.engine import shared_folder
from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.scale import object_store, postgres
from routesparse.engine.scale.postgres import FOLDER
from routesparse.engine.store import bundle, duckdb_file
from routesparse.engine.store.duckdb_file import roll_back
from routesparse.engine.store.duckdb_store import Store, Verified, verified

PREFIX = "ducklake:postgres:"
EXTENSIONS = ("postgres_scanner", "ducklake")
LOCK_S = 120
SCHEMA = "routesparse"  # in PostgreSQL
READERS_S = 5.0  # a page that reads a file which is to go has read it by then
_LOCK = 0x526F757465  # ours among the advisory locks of the database
_SEQUENCE = f"{SCHEMA}.run_key_sequence"
_LOOK_S = 0.5  # how long a page may miss what another process wrote
_INLINED_ROWS = 64  # as many rows of a table go into the catalogue instead of a file of their own
_MOST_CHARACTERS = 300
_GONE = ("No such file", "HTTP 404")  # in a folder, in an object store
_DAMAGED_PARQUET = (
    "too small to be a Parquet file",
    "Invalid footer length",
    "No magic bytes found",
    *_GONE,
    "TProtocolException",
    "Could not read enough bytes",
)
_PARQUET = re.compile(r"[^'\"]+\.parquet")


# Of ``compact``. ducklake_flush_inlined_data (1.5.5) is left alone: a process that has the lake open fails at its next
# read and until it is started again (INTERNAL Error: Attempted to access index 0 within vector of size 0).
_STEPS = (
    "ducklake_rewrite_data_files('lake', delete_threshold => 0.0)",
    "ducklake_merge_adjacent_files('lake')",
    "ducklake_expire_snapshots('lake', older_than => now() + INTERVAL '1 day')",  # hosts' clocks differ; never the last
)
_FILES = ("ducklake_cleanup_old_files('lake', cleanup_all => true)",)
# No writer takes that long from its files to its commit. In an object store these stay: DuckLake would take every
# Parquet file below the address that this catalogue does not name for one of them, and another lake's may lie there.
_ORPHANS = ("ducklake_delete_orphaned_files('lake', older_than => now() - INTERVAL '1 day')",)
_NOT_COMPACTED = "the runs were removed, but the lake was not compacted"
_LEFT = "the next prune does the rest"


@dataclass(frozen=True)
class Moment:
    """What the lake held at one moment, read as a store is. Errors: duckdb.Error, for ``moment`` to tell."""

    cursor: duckdb.DuckDBPyConnection

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        return self.cursor.execute(sql, list(parameters)).fetchall()

    def table(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        return self.cursor.execute(sql, list(parameters)).to_arrow_table()


class LakeStore(Store):
    """Runs, kept by several processes at once. Thread-safe."""

    SEVERAL_WRITERS = True
    AT_ONCE = 16  # a transaction asks PostgreSQL some 300 questions, however many rows it brings

    def __init__(self, address: str, shared: Path, folder: Path, rows: str | None = None) -> None:
        """Open or create the lake and bring its tables up to date.

        address: ``ducklake:postgres:`` and PostgreSQL's key=value words; the password belongs into ~/.pgpass or
        PGPASSWORD. shared: the folder that all hosts see, for rows, bundles and trash. folder: this process's own.
        rows: an object store's address for the rows (object_store.py). Errors: ConfigError for another address,
        StoreError where extensions, catalogue or folder can't be used or are of a newer schema.
        """
        words = catalogue(address)
        self._rows_at = object_store.folder(rows) if rows else None
        self.database, self.shared = folder / "routesparse.duckdb", shared
        self._snapshot, self._looked_at = 0, float("-inf")
        self._keeper: duckdb.DuckDBPyConnection | None = None
        try:
            (shared / "lake").mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise StoreError(
                f"{error.filename} can't be made ({error.strerror}); check ROUTESPARSE_SHARED"
            ) from error
        try:
            connection = _connected(words, self._rows_at)
            self._begin(connection, shared / "bundles", shared / "trash")
            try:
                with self._alone():
                    self._open_lake(words)
            except BaseException:
                connection.close()
                raise
        except duckdb.Error as error:
            raise StoreError(self._told("the store can't be opened", error, "nothing was changed")) from error

    @property
    def generation(self) -> int:
        """The lake's last snapshot, which every change by any process makes; at most _LOOK_S old."""
        if time.monotonic() - self._looked_at > _LOOK_S:
            now = time.monotonic()
            ((snapshot,),) = self.rows("SELECT id FROM lake.current_snapshot()")
            self._snapshot, self._looked_at = max(self._snapshot, int(snapshot)), now
        return self._snapshot

    @property
    def changes(self) -> int:
        """As ``generation``: a snapshot does not say whether it brought a run or took one."""
        return self.generation

    def check_there(self) -> None:
        """Errors: StoreError where the shared folder is gone or another: what is written here would be lost."""
        file = self.shared / "lake" / "identity"
        if not shared_folder.holds(file, self._token):
            raise StoreError(
                f"{file} is not there or another's; is the shared folder mounted? See ROUTESPARSE_SHARED"
            )

    @contextmanager
    def moment(self) -> Iterator[Moment]:
        """All reads of the block are of one snapshot, while others write. Errors: StoreError."""
        with self._reads(), self._cursor() as cursor:
            cursor.begin()
            try:
                yield Moment(cursor)
            finally:
                roll_back(cursor)

    def compact(self) -> None:
        """Give back the room of deleted runs, while others read and write. Errors: StoreError.

        DuckLake deletes no row from a file and no file by itself, nor rows that lay in PostgreSQL, prompts among them:
        it keeps all for who asks for an earlier snapshot. Here files with deleted rows are written anew and small ones
        merged, all snapshots but the last forgotten, and rows and files deleted that no snapshot shows. Each step is a
        transaction of its own: where one fails, what was done before is whole, and the next call does the rest.
        """
        try:
            self._call(_STEPS)
            self._forget_rows()
            time.sleep(READERS_S)
            self._call(_FILES if self._rows_at else (*_FILES, *_ORPHANS))
        except StoreError as error:
            text = str(error)
            raise StoreError(
                text if text.startswith(_NOT_COMPACTED) else f"{_NOT_COMPACTED}: {text}"
            ) from error

    def _call(self, steps: tuple[str, ...]) -> None:
        for step in steps:
            with self.writing(_NOT_COMPACTED, _LEFT) as cursor:
                cursor.execute(f"SELECT count(*) FROM {step}").fetchall()

    def _forget_rows(self) -> None:
        """Delete the rows in PostgreSQL that ended before the first snapshot that is left, and the bounds of texts.

        DuckLake keeps the first and the last text that a column ever held. A column without bounds (NULL) it reads
        whole, and gives it none again.
        """
        tables = f"SELECT table_name FROM {SCHEMA}.ducklake_inlined_data_tables"
        with self.writing(_NOT_COMPACTED, _LEFT) as cursor:
            found = cursor.execute(f"FROM postgres_query('catalogue', '{tables}')").fetchall()
            for (name,) in found:
                cursor.execute(
                    f"""CALL postgres_execute('catalogue', 'DELETE FROM {SCHEMA}."{name}" WHERE end_snapshot <= """
                    f"(SELECT min(snapshot_id) FROM {SCHEMA}.ducklake_snapshot)')"
                )
            cursor.execute(
                f"CALL postgres_execute('catalogue', 'UPDATE {SCHEMA}.ducklake_table_column_stats "
                "SET min_value = NULL, max_value = NULL WHERE (table_id, column_id) IN "
                f"(SELECT table_id, column_id FROM {SCHEMA}.ducklake_column WHERE column_type = ''varchar'')')"
            )

    def _cursor(self) -> duckdb.DuckDBPyConnection:
        cursor = self._connection.cursor()
        cursor.execute("SET search_path = 'lake.main,memory.main,memory.visible'")
        return cursor

    @contextmanager
    def _alone(self) -> Iterator[None]:
        """Errors: StoreError, also where another process holds the lock for longer than LOCK_S."""
        with self._write_lock:
            if self._keeper is not None:
                yield
                return
            with self._connection.cursor() as keeper:
                try:
                    keeper.begin()
                    _asked(keeper, f"SELECT set_config('lock_timeout', '{LOCK_S}s', true)")
                    _asked(keeper, f"SELECT pg_advisory_xact_lock({_LOCK})::text")
                except duckdb.Error as error:
                    roll_back(keeper)
                    raise StoreError(
                        self._told("the store could not be locked", error, "nothing was changed")
                    ) from error
                self._keeper = keeper
                try:
                    yield
                finally:
                    self._keeper, self._looked_at = None, float("-inf")
                    roll_back(keeper)

    def _commit(self, cursor: duckdb.DuckDBPyConnection) -> None:
        # The keeper's connection may have been cut, which gave the lock to somebody else: then this fails.
        assert self._keeper is not None
        _asked(self._keeper, "SELECT 1")
        cursor.commit()

    def _next_key(self, cursor: duckdb.DuckDBPyConnection) -> int:
        assert self._keeper is not None
        return int(_asked(self._keeper, f"SELECT nextval('{_SEQUENCE}')"))

    def _verified(self, path: Path, *, whole: bool) -> Verified:
        manifest, data = verified(path, whole=whole)
        _check_texts(manifest, data)
        return manifest, data

    def _told(self, what: str, error: duckdb.Error, kept: str) -> str:
        lines = str(error).splitlines() or [type(error).__name__]
        text = f"{what} ({lines[0][:_MOST_CHARACTERS]}); {kept}"
        if any("Unable to connect to Postgres" in line for line in lines):
            return f"{what}: PostgreSQL can't be reached; {kept}. Start it, or correct ROUTESPARSE_STORE"
        if any("lock timeout" in line for line in lines):
            return (
                f"{what}: another process has been writing for {LOCK_S} s; {kept}. Try again, or end that one"
            )
        if self._rows_at and (lost := object_store.failed(str(error))):
            return f"{what}: {lost}; {kept}"
        if lost := damaged(self.shared, error):
            return f"{what}: {lost}"
        return text

    def _open_lake(self, words: str) -> None:
        """Attach the lake and bring it up to date, alone: two that begin an empty one would meet."""
        place = _quoted(self._rows_at or f"{self.shared / 'lake'}/")
        self._connection.execute(
            f"ATTACH {_quoted(PREFIX + words)} AS lake "
            f"(DATA_PATH {place}, OVERRIDE_DATA_PATH true, METADATA_SCHEMA '{SCHEMA}')"
        )
        self._check_rows_place()
        for setting, value in (
            ("allowed_directories", f"[{place}]"),
            ("enable_external_access", "false"),  # SQL reads no other file
            ("lock_configuration", "true"),
        ):
            self._connection.execute(f"SET {setting} = {value}")
        with self._cursor() as cursor:
            if not duckdb_file.check_version(cursor, "the lake", _another_lake(self.shared)):
                cursor.execute(f"CALL lake.set_option('data_inlining_row_limit', {_INLINED_ROWS})")
                cursor.execute(
                    f"CALL postgres_execute('catalogue', 'CREATE SEQUENCE IF NOT EXISTS {_SEQUENCE}')"
                )
                cursor.begin()
                cursor.execute(duckdb_file.tables_sql(keys=False))
                cursor.commit()
        self._check_folder()
        self._define()

    def _check_rows_place(self) -> None:
        """A shared folder may be mounted elsewhere, which the identity in it tells; an object store has one address."""
        sql = f"SELECT value FROM {SCHEMA}.ducklake_metadata WHERE key = 'data_path' AND scope IS NULL"
        with self._cursor() as cursor:
            made_with = _asked(cursor, sql)
        there = made_with if made_with.startswith("s3://") else None
        if there != self._rows_at:
            wanted = f"set ROUTESPARSE_LAKE to {there}" if there else "unset ROUTESPARSE_LAKE"
            raise StoreError(
                f"the rows of this catalogue do not lie in {self._rows_at or 'the shared folder'}; {wanted}. To "
                "move them, copy with `routesparse store --to file`, then `--to lake` into a new database and another "
                "ROUTESPARSE_LAKE"
            )

    def _check_folder(self) -> None:
        """The folder and the catalogue must know each other: rows written into another folder nobody would find."""
        file = self.shared / "lake" / "identity"
        try:
            self._know(file)
        except (OSError, UnicodeError) as error:
            why = error.strerror if isinstance(error, OSError) else "it is no text"
            raise StoreError(
                f"{file} can't be used ({why}); mount the folder that the lake was made with, or check its permissions"
            ) from error

    def _know(self, file: Path) -> None:
        """Errors: StoreError for another lake's folder, OSError, UnicodeError."""
        with self._cursor() as cursor:
            cursor.execute("CREATE TABLE IF NOT EXISTS lake_identity (token TEXT NOT NULL)")
            known = cursor.execute("SELECT token FROM lake_identity").fetchone()
            if known is None:
                self._token = secrets.token_hex(16)
                file.write_text(self._token, "utf-8")
                cursor.execute("INSERT INTO lake_identity VALUES (?)", [self._token])
                return
        self._token = known[0]
        if not shared_folder.holds(file, known[0]):
            raise StoreError(
                f"{self.shared} is not the shared folder of this catalogue; set ROUTESPARSE_SHARED to the one that it "
                "was made with, wherever that is mounted here"
            )

    def _define(self) -> None:
        """Views and macros of this process, and the table of summaries where its definition is another."""
        sql = "SELECT table_name FROM duckdb_tables() WHERE database_name = 'lake' AND schema_name = 'main'"
        for (table,) in self._connection.execute(sql).fetchall():
            if table != "run_summary":
                self._connection.execute(f"CREATE VIEW main.{table} AS FROM lake.main.{table}")
        duckdb_file.create_definitions(self._connection)
        digest = hashlib.sha256(duckdb_file.definitions().encode()).hexdigest()
        defined = f"{duckdb_file.VERSION} {digest}"
        with self._cursor() as cursor:
            cursor.begin()
            cursor.execute("CREATE TABLE IF NOT EXISTS summary_definition (text TEXT NOT NULL)")
            if cursor.execute("SELECT text FROM summary_definition").fetchall() != [(defined,)]:
                cursor.execute("CREATE OR REPLACE TABLE run_summary AS FROM summaries_from(0)")
                cursor.execute("DELETE FROM summary_definition")
                cursor.execute("INSERT INTO summary_definition VALUES (?)", [defined])
            cursor.commit()
        self._connection.execute("CREATE VIEW main.run_summary AS FROM lake.main.run_summary")
        duckdb_file.create_owner_views(self._connection)


def catalogue(address: str) -> str:
    """PostgreSQL's words of a store's address. Errors: ConfigError, without what may be a password."""
    return postgres.words(address, PREFIX, "ROUTESPARSE_STORE")


def installed(extensions: Sequence[str] = EXTENSIONS) -> bool:
    """Whether `make ducklake` has been run here."""
    return all(_extension(name).is_file() for name in extensions)


def _extension(name: str) -> Path:
    version = f"v{duckdb.__version__}"
    return FOLDER / f"duckdb_extension_{name}" / "extensions" / version / f"{name}.duckdb_extension"


def _connected(words: str, rows_at: str | None = None) -> duckdb.DuckDBPyConnection:
    """A DuckDB in memory with PostgreSQL attached as ``catalogue``. Errors: StoreError, ConfigError, duckdb.Error."""
    extensions = (*EXTENSIONS, object_store.EXTENSION) if rows_at else EXTENSIONS
    if not installed(extensions):
        raise StoreError(
            f"ROUTESPARSE_STORE needs DuckDB's extensions in {FOLDER}; run `make ducklake`, or unset it to keep runs "
            "in a file of this machine"
        )
    connection = duckdb.connect(
        config={"autoinstall_known_extensions": False, "autoload_known_extensions": False}
    )
    try:
        for name in extensions:
            connection.execute(f"LOAD {_quoted(str(_extension(name)))}")
        if rows_at:
            connection.execute(object_store.secret(rows_at))
        connection.execute(f"ATTACH {_quoted(words)} AS catalogue (TYPE postgres)")
        connection.execute("CREATE SCHEMA visible")
    except BaseException:
        connection.close()
        raise
    return connection


def _asked(cursor: duckdb.DuckDBPyConnection, sql: str) -> str:
    """The one value that PostgreSQL answers. Errors: duckdb.Error."""
    found = cursor.execute(f"FROM postgres_query('catalogue', {_quoted(sql)})").fetchone()
    return str(found[0]) if found else ""


def _check_texts(manifest: bundle.Manifest, data: dict[str, pa.Table]) -> None:
    """Errors: BundleError where a text holds what PostgreSQL can't."""
    for table, rows in data.items():
        for name, column in zip(rows.column_names, rows.columns, strict=True):
            if pa.types.is_string(column.type) and pc.any(pc.match_substring(column, "\0")).as_py():
                raise BundleError(
                    f"run {manifest.run_id} can't be stored: {table}.{name} holds a NUL character, which PostgreSQL "
                    "has no place for; make the bundle again, or discard it"
                )


def damaged(shared: Path, error: Exception) -> str | None:
    """Which file of the rows is damaged or gone, and what to do; None where the error says nothing of the kind."""
    text = str(error)
    named = _PARQUET.search(text)
    if named is None or not any(mark in text for mark in _DAMAGED_PARQUET):
        return None
    begin = "If `routesparse prune` has just run, read again; else stop" if gone(error) else "Stop"
    return (
        f"{named[0]} of the lake is damaged ({text.splitlines()[0][:_MOST_CHARACTERS]}). {begin} all its dashboards; "
        f"then restore a backup, or {_another_lake(shared)}"
    )


def gone(error: BaseException | None) -> bool:
    """Whether a file of rows is not there: `prune` may have deleted what an older snapshot still named."""
    return any(mark in str(error) for mark in _GONE)


def _another_lake(shared: Path) -> str:
    """How to begin anew from the bundles of a lake that is of no use."""
    return (
        f"move {shared / 'lake'} away and name another database in ROUTESPARSE_STORE and, where it is set, another "
        "ROUTESPARSE_LAKE: the dashboards take the runs in from their bundles, without names, notes, tags and pins"
    )


def _quoted(text: str) -> str:
    return "'" + text.replace("'", "''") + "'"
