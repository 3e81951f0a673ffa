"""The store's SQL files: numbered migrations of its tables, and what is defined anew at every start."""

from __future__ import annotations

import re
from collections.abc import Sequence
from importlib import resources
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import duckdb

_FOLDER = resources.files("routesparse.engine.store")


def migrations() -> list[tuple[int, str, str]]:
    """(version, name, SQL) of every numbered file in migrations/, ascending."""
    folder = _FOLDER / "migrations"
    names = sorted(entry.name for entry in folder.iterdir() if entry.name.endswith(".sql"))
    return [(int(name.split("_")[0]), name, (folder / name).read_text("utf-8")) for name in names]


def sql(name: str) -> str:
    """The text of one file beside this module."""
    return (_FOLDER / name).read_text("utf-8")


def without_keys(sql: str) -> str:
    """The same tables for a database that has no sequences and no keys, as DuckLake."""
    plain = re.sub(r"--[^\n]*", "", sql)
    plain = re.sub(r"CREATE SEQUENCE [^;]*;", "", plain)
    return re.sub(r" (PRIMARY KEY|UNIQUE)\b", "", plain)


def create_definitions(connection: duckdb.DuckDBPyConnection) -> None:
    """Schema ``visible`` with the macros of definitions.sql."""
    connection.execute("CREATE SCHEMA IF NOT EXISTS visible")
    connection.execute(sql("definitions.sql"))


def create_owner_views(
    connection: duckdb.DuckDBPyConnection, of_certificates: Sequence[str], heads: Sequence[str]
) -> None:
    """In schema ``visible`` a view of each table that narrows it to one owner's runs and the samples.

    Made anew at every start, from the tables that are there, or views of them: a table that a migration adds or changes
    is in it too. ``heads``: the tables with one row a bundle.
    """
    for table in heads:
        connection.execute(
            f"CREATE OR REPLACE VIEW visible.{table} AS SELECT * FROM main.{table} "
            "WHERE owner IS NOT DISTINCT FROM getvariable('owner')::TEXT "
            "OR bundle_id IN (SELECT bundle_id FROM main.ingested_bundle WHERE origin = 'sample')"
        )
    for place in ("main", "visible"):  # what has a bundle, of either kind
        columns = "run_key, run_id, bundle_id, owner, prompt_name, tokens, created_at"
        both = " UNION ALL ".join(f"SELECT {columns} FROM {place}.{table}" for table in heads)
        connection.execute(f"CREATE OR REPLACE VIEW {place}.stored AS {both}")
    keyed = connection.execute(
        "SELECT table_name, column_name FROM duckdb_columns() WHERE schema_name = 'main' AND NOT internal "
        "AND database_name = current_database() AND table_name NOT IN ('run', 'certificate', 'stored') "
        "AND column_name IN ('run_key', 'bundle_id')"
    ).fetchall()
    parents = {**dict.fromkeys(of_certificates, "certificate"), "ingested_bundle": "stored"}
    for table, key in keyed:
        connection.execute(
            f"CREATE OR REPLACE VIEW visible.{table} AS SELECT * FROM main.{table} "
            f"WHERE {key} IN (SELECT {key} FROM visible.{parents.get(table, 'run')})"
        )
    for table in ("run_label", "trashed_run"):
        connection.execute(
            f"CREATE OR REPLACE VIEW visible.{table} AS SELECT * FROM main.{table} "
            "WHERE owner IS NOT DISTINCT FROM getvariable('owner')::TEXT"
        )
    connection.execute(sql("summaries.sql"))
