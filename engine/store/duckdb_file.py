"""A DuckDB file opened, and a store's tables brought up to date."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import duckdb

from routesparse.engine.errors import StoreError
from routesparse.engine.store import schema, store_errors

OF_CERTIFICATES = ("claim", "named_row")
HEADS = ("run", "certificate")  # the tables with one row a bundle
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,  # SQL reads no other file; bundles are read with pyarrow
}


def open_file(database: Path) -> duckdb.DuckDBPyConnection:
    """Open or create it, its tables as this version has them. Errors: StoreError, the file is untouched."""
    pending = schema.migrations()
    found = database.exists()
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        if found:
            # Read-only first: a file of a newer schema must not be touched.
            with duckdb.connect(str(database), read_only=True, config=_SETTINGS) as connection:
                version = version_of(connection)
            if version > pending[-1][0]:
                raise StoreError(
                    f"{database.name} has schema {version}, this version reads {pending[-1][0]}; upgrade "
                    "RouteSparse or set ROUTESPARSE_HOME to another folder. The file was not changed"
                )
        connection = duckdb.connect(str(database), config=_SETTINGS)
        try:
            migrate(connection, pending)
            connection.begin()
            schema.create_definitions(connection)
            # Made anew at every start, so that it can't differ from the rows; each run's that comes in is added.
            connection.execute("CREATE OR REPLACE TABLE main.run_summary AS FROM main.summaries_from(0)")
            schema.create_owner_views(connection, OF_CERTIFICATES, HEADS)
            connection.commit()
        except BaseException:
            connection.close()
            raise
        return connection
    except (duckdb.Error, StoreError) as error:
        full = store_errors.no_room(error)  # also in the midst of a migration
        if full and not found:
            # The beginning of a file, which DuckDB would refuse for ever, and of its log.
            for file in (database, database.with_name(f"{database.name}.wal")):
                file.unlink(missing_ok=True)
        if isinstance(error, StoreError) and not full:
            raise
        raise store_errors.not_opened(database, error) from error
    except OSError as error:
        raise StoreError(
            f"{error.filename} can't be created ({error.strerror}); check ROUTESPARSE_HOME"
        ) from error


def version_of(connection: duckdb.DuckDBPyConnection) -> int:
    """Of a store's tables; 0 where there are none. A table of that name elsewhere in PostgreSQL is not ours."""
    sql = (
        "SELECT count(*) FROM information_schema.tables WHERE table_name = 'schema_migration' "
        "AND table_catalog = current_catalog() AND table_schema = current_schema()"
    )
    if not (connection.execute(sql).fetchone() or (0,))[0]:
        return 0
    return int(
        (connection.execute("SELECT coalesce(max(version), 0) FROM schema_migration").fetchone() or (0,))[0]
    )


def migrate(
    connection: duckdb.DuckDBPyConnection,
    pending: list[tuple[int, str, str]],
    adapted: Callable[[str], str] = str,
) -> None:
    """Bring a store's tables up to date, all of a migration or nothing. Errors: StoreError."""
    version = version_of(connection)
    for number, name, sql in pending:
        if number <= version:
            continue
        connection.begin()
        try:
            connection.execute(
                adapted(
                    "CREATE TABLE IF NOT EXISTS schema_migration "
                    "(version INTEGER PRIMARY KEY, name TEXT NOT NULL, applied_at TIMESTAMP NOT NULL)"
                )
            )
            connection.execute(adapted(sql))
            connection.execute(
                "INSERT INTO schema_migration VALUES (?, ?, now() AT TIME ZONE 'UTC')", [number, name]
            )
            connection.commit()
        except duckdb.Error as error:
            roll_back(connection)
            raise StoreError(f"migration {name} failed ({error}); the store is as it was before") from error


def roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
    """End a transaction that failed."""
    try:
        cursor.rollback()
    except duckdb.Error:
        return  # the failed statement has already ended the transaction, the connection, or the whole database
