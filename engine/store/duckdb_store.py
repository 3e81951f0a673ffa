"""The DuckDB store: the only module that imports duckdb, owned by the one process that opens the file.

The tables hold everybody's runs. Schema ``visible`` has a view of each table under the same name that shows one
owner's rows; pages read these alone (owner_view.py).

DuckDB lets one process open a file that somebody writes, so the web process is the only one that does;
workers and the command line hand over bundles through the spool. One transaction per bundle, one cursor per
call, so that threads never share one. The store keeps each bundle's folder beside the database: the float16
probes stay in their Parquet files, and a deleted run goes to the trash folder, from where it can come back.
"""

from __future__ import annotations

import os
import shutil
import stat
import threading
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

import duckdb
import pyarrow as pa

from routesparse.engine.errors import BundleError, StoreError
from routesparse.engine.plain_files import identity
from routesparse.engine.store import bundle, bundle_moves, schema, store_errors, thumbnail
from routesparse.engine.store.read_cache import ReadCache

Origin = Literal["spool", "sample"]

FACT_TABLES = (
    "layer_run",
    "head_choice",
    "candidate_score",
    "fallback_event",
    "audit",
    "worst_row",
    "probe_meta",
    "answer",
    "continuation",
    "prompt",
)
_OF_CERTIFICATES = ("claim", "named_row")
_HEADS = ("run", "certificate")  # the tables with one row a bundle
_IDLE_READERS = 16
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,  # SQL reads no other file; bundles are read with pyarrow
}


class Store:
    """Runs, kept. Thread-safe: reads take their own cursor, writes one lock."""

    def __init__(self, database: Path, *, bundles: Path | None = None, trash: Path | None = None) -> None:
        """Open or create the file and bring its schema up to date.

        Errors: StoreError when the file is held by another process, is no DuckDB file or has a newer schema;
        the file is then left untouched.
        """
        self.database = Path(database)
        self.bundles = bundles or self.database.parent / "bundles"
        self.trash = trash or self.database.parent / "trash"
        # Runs whose bundle is in the bundles folder but not in the tables: inserting failed (no space left, say).
        self.unlisted: dict[str, Origin] = {}
        self.generation = 0  # grows with every change, so that pages know when to read again
        self.changes = 0  # grows with every change but a new run: the rows of a stored one stay as they are
        self.reads, self.reads_of_runs = ReadCache(), ReadCache()
        self._write_lock = threading.RLock()
        self._idle: dict[str | None, duckdb.DuckDBPyConnection] = {}
        self._connection = _open(self.database)
        self._identity = identity(self.database)
        try:
            for folder in (self.bundles, self.trash):
                folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            self._connection.close()
            raise StoreError(
                f"{error.filename} can't be created ({error.strerror}); check the folder"
            ) from error

    def check_there(self) -> None:
        """Errors: StoreError where the file was deleted or replaced: what is written here would be lost."""
        if identity(self.database) != self._identity:
            raise StoreError(
                f"{self.database} was deleted or replaced while the dashboard ran; put its folder back, or start the "
                "dashboard again to begin with an empty store"
            )

    def close(self) -> None:
        """Flush and give the file back."""
        for cursor in self._idle.values():
            cursor.close()
        self._connection.close()

    def rows(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """The result of a read of everybody's rows as tuples; pages have an OwnerView. Errors: StoreError."""
        with self._reads(), self._connection.cursor() as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    @contextmanager
    def reading(self, owner: str | None) -> Iterator[duckdb.DuckDBPyConnection]:
        """A cursor for which a table's name means the owner's rows and the samples. Errors: StoreError."""
        with self._reads():
            cursor = self._idle.pop(owner, None)
            if cursor is None:
                cursor = self._connection.cursor()
                cursor.execute("SET search_path = 'visible'")
                cursor.execute("SET VARIABLE owner = ?", [owner])
            yield cursor
            # One is kept per owner, for the next query of the page; a failed one is not.
            if len(self._idle) >= _IDLE_READERS or self._idle.setdefault(owner, cursor) is not cursor:
                cursor.close()

    def adopt(self, path: Path, origin: Origin, *, move: bool) -> str | None:
        """Verify a bundle, take its folder in, insert its rows; the run id, or None if it was here already.

        Harmless to repeat: the bundle's id is unique. Killed at any moment, the bundle is either still at its
        source or in the bundles folder, and the next start inserts it. Where inserting fails it stays in the
        bundles folder and its run in ``unlisted``. Errors: BundleError for one that can never be stored (back at its
        source, for the caller to set aside), StoreError.
        """
        manifest, data = bundle.verified_tables(path)
        if move and (extra := bundle.extra_entries(path, manifest)):
            raise BundleError(
                f"{path.name} also holds {extra[0]!r}, which its manifest does not name; remove it"
            )
        if "probe" in data:
            data["probe_meta"] = thumbnail.probe_meta(data["probe"])
        with self._write_lock:
            known = self.rows("SELECT bundle_id FROM stored WHERE run_id = ?", [manifest.run_id])
            if known and known[0][0] != manifest.digest:
                raise BundleError(
                    f"run {manifest.run_id} is stored already with other contents; delete it first, "
                    "or write the bundle under a new run id"
                )
            place = self.bundles / manifest.run_id
            if path != place:
                bundle_moves.bring(path, manifest, place, move=move, keep=bool(known))
            if known:
                return None
            self.unlisted[manifest.run_id] = origin
            try:
                self._insert(manifest, data, origin)
            except BundleError:
                if path != place:
                    bundle_moves.take_back(path, place)
                self.unlisted.pop(manifest.run_id)
                raise
            self.unlisted.pop(manifest.run_id)
            self.generation += 1
        return manifest.run_id

    @contextmanager
    def _reads(self) -> Iterator[None]:
        try:
            yield
        except duckdb.Error as error:
            raise StoreError(
                self._told("the store could not be read", error, "nothing was changed")
            ) from error

    def _told(self, what: str, error: duckdb.Error, kept: str) -> str:
        return store_errors.failed(self.database, what, error, kept)

    @contextmanager
    def writing(self, failed: str) -> Iterator[duckdb.DuckDBPyConnection]:
        """A transaction under the write lock, all or nothing; ``failed`` begins the message. Errors: StoreError."""
        with self._write_lock, self._connection.cursor() as cursor:
            try:
                cursor.begin()
                yield cursor
                cursor.commit()
            except duckdb.Error as error:
                _roll_back(cursor)
                raise StoreError(self._told(failed, error, "nothing was changed")) from error
            self.generation += 1
            self.changes += 1

    def delete_run(self, run_id: str) -> None:
        """Remove a run or certificate from the tables; its bundle goes to the trash. Errors: StoreError if unknown."""
        with self._write_lock:
            found = self.rows("SELECT run_key, bundle_id FROM stored WHERE run_id = ?", [run_id])
            if not found:
                raise StoreError(f"run {run_id} is not in the store; nothing was deleted")
            run_key, bundle_id = found[0]
            with self.writing(f"run {run_id} was not deleted") as cursor:
                cursor.execute(
                    "INSERT INTO trashed_run SELECT run_id, owner, prompt_name, tokens, created_at, "
                    "now() AT TIME ZONE 'UTC' FROM stored WHERE run_key = ?",
                    [run_key],
                )
                for table in (*FACT_TABLES, *_OF_CERTIFICATES, "run_summary", *_HEADS):
                    cursor.execute(f"DELETE FROM {table} WHERE run_key = ?", [run_key])
                cursor.execute(
                    "UPDATE ingested_bundle SET deleted_at = now() AT TIME ZONE 'UTC' WHERE bundle_id = ?",
                    [bundle_id],
                )
            place = self.bundles / run_id
            if place.exists():
                shutil.rmtree(self.trash / run_id, ignore_errors=True)
                place.rename(self.trash / run_id)
                os.utime(self.trash / run_id)  # its age in the trash counts from now

    def was_deleted(self, bundle_id: str) -> bool:
        """Whether somebody deleted this bundle: samples don't come back by themselves."""
        sql = "SELECT 1 FROM ingested_bundle WHERE bundle_id = ? AND deleted_at IS NOT NULL"
        return bool(self.rows(sql, [bundle_id]))

    def run_ids(self) -> set[str]:
        """The ids of all stored runs and certificates."""
        return {row[0] for row in self.rows("SELECT run_id FROM stored")}

    def _insert(self, manifest: bundle.Manifest, data: dict[str, pa.Table], origin: Origin) -> None:
        """All rows of one bundle in one transaction.

        Errors: BundleError for values that the tables can't hold, StoreError; nothing is inserted then.
        """
        with self._connection.cursor() as cursor:
            try:
                cursor.begin()
                (run_key,) = cursor.execute("SELECT nextval('run_key_sequence')").fetchone() or (None,)
                cursor.register("incoming", data[manifest.head])
                cursor.execute(
                    f"INSERT INTO {manifest.head} BY NAME "
                    "SELECT ?::INTEGER AS run_key, ? AS bundle_id, * FROM incoming",
                    [run_key, manifest.digest],
                )
                for table in (*FACT_TABLES, *_OF_CERTIFICATES):
                    if table not in data or not data[table].num_rows:
                        continue
                    rows = data[table]
                    cursor.register(
                        "incoming", rows.drop_columns(["run_id"]) if "run_id" in rows.schema.names else rows
                    )
                    cursor.execute(
                        f"INSERT INTO {table} BY NAME SELECT ?::INTEGER AS run_key, * FROM incoming",
                        [run_key],
                    )
                if manifest.head == "run":
                    cursor.execute(f"INSERT INTO run_summary FROM summaries_from({run_key})")
                cursor.execute(
                    "INSERT INTO ingested_bundle VALUES (?, ?, ?, ?, ?, now() AT TIME ZONE 'UTC', NULL) "
                    "ON CONFLICT (bundle_id) DO UPDATE SET deleted_at = NULL",
                    [manifest.digest, manifest.run_id, origin, manifest.schema_version, manifest.size_bytes],
                )
                cursor.execute("DELETE FROM trashed_run WHERE run_id = ?", [manifest.run_id])
                cursor.commit()
            except duckdb.DataError as error:
                _roll_back(cursor)
                raise BundleError(
                    f"run {manifest.run_id} can't be stored ({error}); make the bundle again, or discard it"
                ) from error
            except duckdb.Error as error:
                _roll_back(cursor)
                what = f"run {manifest.run_id} was not stored"
                raise StoreError(self._told(what, error, "its bundle is kept and tried again")) from error
            finally:
                cursor.unregister("incoming")


def compact(database: Path) -> tuple[int, int]:
    """Write the file of a closed store anew, without the room that deleted runs left; its bytes before and after.

    DuckDB fills that room with later runs but never gives it back: neither CHECKPOINT nor VACUUM shrinks a file.
    Errors: StoreError, also where a dashboard holds the file; it is then as it was.
    """
    Store(database).close()  # of today's schema, and not held by anybody
    before, fresh = database.stat().st_size, database.with_suffix(".compact")
    logs = [file.with_name(f"{file.name}.wal") for file in (database, fresh)]
    try:
        fresh.unlink(missing_ok=True)
        with duckdb.connect() as connection:
            for name, file, how in (("old", database, " (READ_ONLY)"), ("fresh", fresh, "")):
                quoted = str(file).replace("'", "''")
                connection.execute(f"ATTACH '{quoted}' AS {name}{how}")
            connection.execute("COPY FROM DATABASE old TO fresh")
            connection.execute(
                "CHECKPOINT fresh"
            )  # closing checkpoints too, but says nothing where that fails
        if any(log.exists() for log in logs):
            raise OSError("a log of writes is left beside it")
        fresh.chmod(stat.S_IMODE(database.stat().st_mode))
        fresh.replace(database)
    except (duckdb.Error, OSError) as error:
        for left in (fresh, logs[1]):
            left.unlink(missing_ok=True)
        raise StoreError(f"{database.name} was not compacted ({error}); it is as it was") from error
    return before, database.stat().st_size


def _open(database: Path) -> duckdb.DuckDBPyConnection:
    pending = schema.migrations()
    found = database.exists()
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        if found:
            # Read-only first: a file of a newer schema must not be touched.
            with duckdb.connect(str(database), read_only=True, config=_SETTINGS) as connection:
                version = _version(connection)
            if version > pending[-1][0]:
                raise StoreError(
                    f"{database.name} has schema {version}, this version reads {pending[-1][0]}; upgrade "
                    "RouteSparse or set ROUTESPARSE_HOME to another folder. The file was not changed"
                )
        connection = duckdb.connect(str(database), config=_SETTINGS)
        try:
            _migrate(connection, pending)
            _create_owner_views(connection)
        except BaseException:
            connection.close()
            raise
        return connection
    except duckdb.Error as error:
        if not found and store_errors.no_room(error):
            database.unlink(missing_ok=True)  # the beginning of a file, which DuckDB would refuse for ever
        raise StoreError(store_errors.not_opened(database, error)) from error
    except OSError as error:
        raise StoreError(
            f"{error.filename} can't be created ({error.strerror}); check ROUTESPARSE_HOME"
        ) from error


def _version(connection: duckdb.DuckDBPyConnection) -> int:
    sql = "SELECT count(*) FROM information_schema.tables WHERE table_name = 'schema_migration'"
    if not (connection.execute(sql).fetchone() or (0,))[0]:
        return 0
    return int(
        (connection.execute("SELECT coalesce(max(version), 0) FROM schema_migration").fetchone() or (0,))[0]
    )


def _migrate(connection: duckdb.DuckDBPyConnection, pending: list[tuple[int, str, str]]) -> None:
    version = _version(connection)
    for number, name, sql in pending:
        if number <= version:
            continue
        connection.begin()
        try:
            connection.execute(
                "CREATE TABLE IF NOT EXISTS schema_migration "
                "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TIMESTAMP NOT NULL)"
            )
            connection.execute(sql)
            connection.execute(
                "INSERT INTO schema_migration VALUES (?, ?, now() AT TIME ZONE 'UTC')", [number, name]
            )
            connection.commit()
        except duckdb.Error as error:
            _roll_back(connection)
            raise StoreError(f"migration {name} failed ({error}); the store is as it was before") from error


def _create_owner_views(connection: duckdb.DuckDBPyConnection) -> None:
    """Schema ``visible``: a view of each table that narrows it to one owner's runs and the samples.

    Made anew at every start, from the tables that are there: a table that a migration adds or changes is in it too.
    """
    connection.begin()
    connection.execute("CREATE SCHEMA IF NOT EXISTS visible")
    connection.execute(schema.sql("definitions.sql"))
    for table in _HEADS:
        connection.execute(
            f"CREATE OR REPLACE VIEW visible.{table} AS SELECT * FROM main.{table} "
            "WHERE owner IS NOT DISTINCT FROM getvariable('owner')::TEXT "
            "OR bundle_id IN (SELECT bundle_id FROM main.ingested_bundle WHERE origin = 'sample')"
        )
    for place in ("main", "visible"):  # what has a bundle, of either kind
        columns = "run_key, run_id, bundle_id, owner, prompt_name, tokens, created_at"
        both = " UNION ALL ".join(f"SELECT {columns} FROM {place}.{table}" for table in _HEADS)
        connection.execute(f"CREATE OR REPLACE VIEW {place}.stored AS {both}")
    keyed = connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal "
        "AND table_name NOT IN ('run', 'certificate', 'stored') AND column_name IN ('run_key', 'bundle_id')"
    ).fetchall()
    heads = {**dict.fromkeys(_OF_CERTIFICATES, "certificate"), "ingested_bundle": "stored"}
    for table, key in keyed:
        connection.execute(
            f"CREATE OR REPLACE VIEW visible.{table} AS SELECT * FROM main.{table} "
            f"WHERE {key} IN (SELECT {key} FROM visible.{heads.get(table, 'run')})"
        )
    for table in ("run_label", "trashed_run"):
        connection.execute(
            f"CREATE OR REPLACE VIEW visible.{table} AS SELECT * FROM main.{table} "
            "WHERE owner IS NOT DISTINCT FROM getvariable('owner')::TEXT"
        )
    connection.execute(schema.sql("summaries.sql"))
    connection.commit()


def _roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
    try:
        cursor.rollback()
    except (duckdb.TransactionException, duckdb.FatalException):
        return  # the failed statement has already ended the transaction, or the whole database
