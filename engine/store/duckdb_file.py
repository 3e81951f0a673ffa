"""A DuckDB file opened, and the tables and views of a store made in it.

There is a table for each of a bundle's, with the columns of its record class (tables.py) and ``run_key`` in place of
``run_id``; tables.sql has those that no bundle has. Views and macros are made anew at every start.
"""

from __future__ import annotations

import contextlib
import re
import stat
from collections.abc import Mapping
from importlib import resources
from pathlib import Path

import duckdb
import pyarrow as pa

from routesparse.engine.errors import StoreError
from routesparse.engine.store import store_errors, tables
from routesparse.engine.store.tables import FACT_TABLES, HEADS, OF_CERTIFICATES

VERSION = 17  # of the tables: one more with every change of a record class or of tables.sql
_SETTINGS: dict[str, str | bool | int | float | list[str]] = {
    "autoinstall_known_extensions": False,
    "autoload_known_extensions": False,
    "enable_external_access": False,  # SQL reads no other file; bundles are read with pyarrow
}
# What bundles do not hold: names, notes, tags and pins, the trash, and which samples were deleted.
_OF_PEOPLE = {
    "run_label": "FROM run_label",
    "trashed_run": "FROM trashed_run",
    "ingested_bundle": "FROM ingested_bundle WHERE deleted_at IS NOT NULL",
}
_SQL_TYPES = {
    pa.string(): "TEXT",
    pa.int64(): "BIGINT",
    pa.float64(): "DOUBLE",
    pa.bool_(): "BOOLEAN",
    pa.binary(): "BLOB",
}


def open_file(database: Path) -> duckdb.DuckDBPyConnection:
    """Open or create it. A file of an older version is moved beside the new one, which gets what people added to runs;
    the store takes the runs in from their bundles. Errors: StoreError, also for a newer one; it is then untouched."""
    found, added = database.exists(), dict[str, pa.Table]()
    try:
        database.parent.mkdir(parents=True, exist_ok=True)
        if found:  # read-only first: a file of another version must not be touched
            with duckdb.connect(str(database), read_only=True, config=_SETTINGS) as connection:
                version = version_of(connection)
                if 0 < version < VERSION:
                    added = {
                        name: connection.execute(sql).to_arrow_table() for name, sql in _OF_PEOPLE.items()
                    }
                else:
                    check_version(connection, database.name, "")
            if added:
                fresh = database.with_name(f"{database.name}.new")
                fresh.unlink(missing_ok=True)
                _opened(fresh, added).close()
                aside = database.with_name(f"{database.stem}.schema{version}{database.suffix}")
                for end in ("", ".wal"):
                    with contextlib.suppress(FileNotFoundError):
                        database.with_name(database.name + end).rename(aside.with_name(aside.name + end))
                fresh.rename(database)
        return _opened(database, {})
    except duckdb.Error as error:
        if store_errors.no_room(error) and not found:
            # The beginning of a file, which DuckDB would refuse for ever, and of its log.
            for file in (database, database.with_name(f"{database.name}.wal")):
                file.unlink(missing_ok=True)
        raise store_errors.not_opened(database, error) from error
    except OSError as error:
        raise StoreError(
            f"{error.filename} can't be created ({error.strerror}); check ROUTESPARSE_HOME"
        ) from error


def _opened(database: Path, added: Mapping[str, pa.Table]) -> duckdb.DuckDBPyConnection:
    """Open it, and make the tables where there are none; added: rows of them by table."""
    connection = duckdb.connect(str(database), config=_SETTINGS)
    try:
        connection.begin()
        if not version_of(connection):
            connection.execute(tables_sql())
            for name, rows in added.items():
                connection.register("added", rows)
                connection.execute(f"INSERT INTO {name} BY NAME FROM added")
                connection.unregister("added")
        create_definitions(connection)
        # Made anew at every start, so that it can't differ from the rows; each run's that comes in is added.
        connection.execute("CREATE OR REPLACE TABLE main.run_summary AS FROM main.summaries_from(0)")
        create_owner_views(connection)
        connection.commit()
    except BaseException:
        connection.close()
        raise
    return connection


def version_of(connection: duckdb.DuckDBPyConnection) -> int:
    """Of a store's tables; 0 where there are none. A table of that name elsewhere in PostgreSQL is not ours."""
    sql = (
        "SELECT count(*) FROM information_schema.tables WHERE table_name = 'schema_migration' "
        "AND table_catalog = current_catalog() AND table_schema = current_schema()"
    )
    if not (connection.execute(sql).fetchone() or (0,))[0]:
        return 0
    (version,) = connection.execute("SELECT coalesce(max(version), 0) FROM schema_migration").fetchone() or (
        0,
    )
    return int(version)


def check_version(connection: duckdb.DuckDBPyConnection, name: str, cure: str) -> int:
    """The version of the tables, 0 where there are none yet. Errors: StoreError for another one than this program's."""
    version = version_of(connection)
    if version > VERSION:
        raise StoreError(
            f"{name} has schema {version}, this version reads {VERSION}; upgrade RouteSparse or set ROUTESPARSE_HOME "
            "to another folder. Nothing was changed"
        )
    if 0 < version < VERSION:
        raise StoreError(
            f"{name} has schema {version}, from before the first release, and this version reads {VERSION}; nothing "
            f"was changed. {cure}"
        )
    return version


def tables_sql(*, keys: bool = True) -> str:
    """What makes all tables; without keys for a database that has neither keys nor sequences, as DuckLake."""
    statements = [_read("tables.sql")]
    for table in (*HEADS, *FACT_TABLES, *OF_CERTIFICATES):
        if table == "probe_meta":  # in tables.sql
            continue
        columns = [f"run_key INTEGER {'PRIMARY KEY' if table in (*HEADS, 'prompt') else 'NOT NULL'}"]
        if table in HEADS:
            columns.append("bundle_id TEXT NOT NULL")
        for field in tables.arrow_schema(table):
            if field.name == "run_id" and table not in HEADS:
                continue
            limits = ("" if field.nullable else " NOT NULL") + (" UNIQUE" if field.name == "run_id" else "")
            columns.append(f'"{field.name}" {_SQL_TYPES[field.type]}{limits}')
        statements.append(f"CREATE TABLE {table} ({', '.join(columns)});")
    statements.append(
        f"INSERT INTO schema_migration VALUES ({VERSION}, 'tables.sql', now() AT TIME ZONE 'UTC');"
    )
    sql = "\n".join(statements)
    if keys:
        return sql
    plain = re.sub(r"CREATE SEQUENCE [^;]*;", "", re.sub(r"--[^\n]*", "", sql))
    return re.sub(r" (PRIMARY KEY|UNIQUE)\b", "", plain)


def definitions() -> str:
    """SQL of the macros that queries share."""
    return _read("definitions.sql")


def create_definitions(connection: duckdb.DuckDBPyConnection) -> None:
    """Schema ``visible`` with the macros of definitions.sql."""
    connection.execute("CREATE SCHEMA IF NOT EXISTS visible")
    connection.execute(definitions())


def create_owner_views(connection: duckdb.DuckDBPyConnection) -> None:
    """In schema ``visible`` a view of each table that narrows it to one owner's runs and the samples."""

    def view(name: str, sql: str) -> None:
        connection.execute(f"CREATE OR REPLACE VIEW {name} AS {sql}")

    mine = "owner IS NOT DISTINCT FROM getvariable('owner')::TEXT"
    for table in HEADS:
        samples = "SELECT bundle_id FROM main.ingested_bundle WHERE origin = 'sample'"
        view(f"visible.{table}", f"SELECT * FROM main.{table} WHERE {mine} OR bundle_id IN ({samples})")
    for place in ("main", "visible"):  # what has a bundle, of either kind
        columns = "run_key, run_id, bundle_id, owner, prompt_name, tokens, created_at"
        both = " UNION ALL ".join(f"SELECT {columns} FROM {place}.{table}" for table in HEADS)
        view(f"{place}.stored", both)
    keyed = {
        **dict.fromkeys((*FACT_TABLES, "run_summary"), "run"),
        **dict.fromkeys(OF_CERTIFICATES, "certificate"),
    }
    for table, head in keyed.items():
        shown = f"SELECT run_key FROM visible.{head}"
        view(f"visible.{table}", f"SELECT * FROM main.{table} WHERE run_key IN ({shown})")
    shown = "SELECT bundle_id FROM visible.stored"
    view("visible.ingested_bundle", f"SELECT * FROM main.ingested_bundle WHERE bundle_id IN ({shown})")
    for table in ("run_label", "trashed_run"):
        view(f"visible.{table}", f"SELECT * FROM main.{table} WHERE {mine}")
    view(
        "visible.head_choice",
        "SELECT c.*, visible.unit_uncertified(c.pattern, c.lower_mass, r.tau) AS uncertified "
        "FROM main.head_choice c JOIN visible.run r USING (run_key)",
    )


def roll_back(cursor: duckdb.DuckDBPyConnection) -> None:
    """End a transaction that failed."""
    try:
        cursor.rollback()
    except duckdb.Error:
        return  # the failed statement has already ended the transaction, the connection, or the whole database


def compact(database: Path) -> None:
    """Write the file of a closed store anew, without the room that deleted runs left.

    DuckDB fills that room with later runs but never gives it back: neither CHECKPOINT nor VACUUM shrinks a file.
    Errors: StoreError, also where a dashboard holds the file; it is then as it was.
    """
    open_file(database).close()  # of today's tables, and not held by anybody
    fresh = database.with_suffix(".compact")
    logs = [file.with_name(f"{file.name}.wal") for file in (database, fresh)]
    try:
        fresh.unlink(missing_ok=True)
        with duckdb.connect() as connection:
            for name, file, how in (("old", database, " (READ_ONLY)"), ("fresh", fresh, "")):
                quoted = str(file).replace("'", "''")
                connection.execute(f"ATTACH '{quoted}' AS {name}{how}")
            connection.execute("COPY FROM DATABASE old TO fresh")
            # Closing checkpoints too, but says nothing where that fails.
            connection.execute("CHECKPOINT fresh")
        if any(log.exists() for log in logs):
            raise OSError("a log of writes is left beside it")
        fresh.chmod(stat.S_IMODE(database.stat().st_mode))
        fresh.replace(database)
    except (duckdb.Error, OSError) as error:
        for left in (fresh, logs[1]):
            left.unlink(missing_ok=True)
        raise StoreError(f"{database.name} was not compacted ({error}); it is as it was") from error


def _read(name: str) -> str:
    return (resources.files("routesparse.engine.store") / name).read_text("utf-8")
