"""DATA_DICTIONARY.md of an exported ZIP, from dictionary.csv: what every table and column means.

A line of the file has table, column (empty: what a row of the table is), unit, meaning, and what a missing value means.
A test holds it complete: a column without a line, or one that may be NULL without saying what NULL means, fails it.
"""

from __future__ import annotations

import csv
from functools import cache
from importlib import resources

import pyarrow as pa

from routesparse.engine.store import tables

_HEADER = """# Data dictionary

NULL (NaN or None in pandas) means that nothing was measured, never 0. Shares lie between 0 and 1. A *unit* is one \
head of one layer in one segment of the prompt. Tables join on the columns that they share. A run of an older version \
may lack columns, whose values are then NULL.
"""
_TYPES = {
    pa.string(): "text",
    pa.int64(): "whole number",
    pa.float64(): "number",
    pa.bool_(): "true or false",
    pa.binary(): "bytes",
}


@cache
def meanings() -> dict[tuple[str, str], dict[str, str]]:
    """(table, column) -> ``unit``, ``meaning``, ``null``."""
    file = resources.files("routesparse.engine.export") / "dictionary.csv"
    rows = csv.DictReader(file.read_text("utf-8").splitlines())
    return {(row.pop("table"), row.pop("column")): row for row in rows}


def markdown(head: str = "run") -> str:
    """Every table and column of a run's bundle, or of a certificate's, with its type."""
    known, lines = meanings(), [_HEADER]
    for table in tables.TABLES if head == "run" else tables.CERTIFICATE_TABLES:
        lines += [f"## {table}.parquet", known[table, ""]["meaning"], ""]
        lines += ["| column | type | unit | meaning | NULL means |", "|---|---|---|---|---|"]
        for field in tables.arrow_schema(table):
            entry = known[table, field.name]
            cells = (f"`{field.name}`", _TYPES[field.type], entry["unit"], entry["meaning"], entry["null"])
            lines.append("| " + " | ".join(cell.replace("|", "\\|") for cell in cells) + " |")
        lines.append("")
    return "\n".join(lines)
