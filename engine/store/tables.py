"""Arrow schemas of a bundle's tables, derived from the dataclasses in ``engine/rows.py`` and ``certificate_rows.py``.

A bundle is a run or a certificate, and has the tables of one of the two: one table per record class. A field that may
be None is nullable, every other field is required. Rows are sorted by (layer, head, segment, batch_index, candidate,
test, rank, dense_rank, label, position), as far as a table has these columns.
"""

from __future__ import annotations

import types
import typing
from collections.abc import Iterable
from dataclasses import fields
from functools import cache
from typing import Any

import pyarrow as pa

from routesparse.engine import rows as of_run
from routesparse.engine.certificate_rows import CertificateRecord, CertificateRow, ClaimRow, NamedRow
from routesparse.engine.errors import BundleError
from routesparse.engine.store.rules import FLAG, Rule

# table name -> (record class, field of RunRecord that holds its rows)
TABLES: dict[str, tuple[type, str]] = {
    "run": (of_run.RunRow, "run"),
    "layer_run": (of_run.LayerRow, "layers"),
    "head_choice": (of_run.HeadChoiceRow, "choices"),
    "candidate_score": (of_run.CandidateScoreRow, "candidates"),
    "fallback_event": (of_run.FallbackEventRow, "fallbacks"),
    "audit": (of_run.AuditRow, "audits"),
    "worst_row": (of_run.WorstRow, "worst_rows"),
    "block_reads": (of_run.BlockReadsRow, "block_reads"),
    "traced_row": (of_run.TracedRow, "traced_rows"),
    "probe": (of_run.ProbeRow, "probes"),
    "answer": (of_run.AnswerRow, "answers"),
    "continuation": (of_run.ContinuationRow, "continuations"),
    "loss": (of_run.LossRow, "losses"),
    "prompt": (of_run.PromptRow, "prompt"),
}
# The same of a certificate, in CertificateRecord.
CERTIFICATE_TABLES: dict[str, tuple[type, str]] = {
    "certificate": (CertificateRow, "certificate"),
    "claim": (ClaimRow, "claims"),
    "named_row": (NamedRow, "named"),
}
HEADS = ("run", "certificate")  # the tables with one row a bundle
# What the store keeps of the other tables; the heatmaps and masks stay in the bundle.
FACT_TABLES = (*(name for name in TABLES if name not in ("run", "block_reads", "probe")), "probe_meta")
OF_CERTIFICATES = ("claim", "named_row")
# table -> a column's name in bundles of schema 1 -> its name now
RENAMED = {"run": {"gate": "gate_threshold"}, "head_choice": {"gate": "gate_statistic"}}
# Since schema 3, 3, 4, 6, 7 and 8; the others where the run has them.
OPTIONAL_TABLES = frozenset(
    {"worst_row", "block_reads", "continuation", "named_row", "loss", "traced_row", "answer", "prompt"}
)
SORT_COLUMNS = (
    *("layer", "head", "segment", "batch_index", "candidate"),
    *("test", "rank", "dense_rank", "label", "position"),
)

_ALL = {**TABLES, **CERTIFICATE_TABLES}
_ARROW_TYPES: dict[type, pa.DataType] = {
    str: pa.string(),
    int: pa.int64(),
    float: pa.float64(),
    bool: pa.bool_(),
    bytes: pa.binary(),
}


@cache
def arrow_schema(table: str) -> pa.Schema:
    """The Arrow schema of one table of the bundle."""
    record, _ = _ALL[table]
    hints = typing.get_type_hints(record)
    return pa.schema([_arrow_field(field.name, hints[field.name]) for field in fields(record)])


@cache
def rules(table: str) -> dict[str, Rule]:
    """What each column of a table may hold, as its record's annotation says."""
    record, _ = _ALL[table]
    hints = typing.get_type_hints(record, include_extras=True)
    return {field.name: _rule(hints[field.name]) for field in fields(record)}


def head_table(names: Iterable[str]) -> str:
    """Which table of a bundle has its one row of totals: that of a certificate, else that of a run."""
    return "certificate" if "certificate" in names else "run"


def of_kind(head: str) -> dict[str, tuple[type, str]]:
    """The tables that a bundle with this head table may have."""
    return CERTIFICATE_TABLES if head == "certificate" else TABLES


def rows_of(record: of_run.RunRecord | CertificateRecord, table: str) -> list[Any]:
    """The rows of one table; an empty list where the run has none."""
    value = getattr(record, _ALL[table][1])
    if value is None:
        return []
    return list(value) if isinstance(value, tuple) else [value]


def to_arrow(table: str, rows: Iterable[Any]) -> pa.Table:
    """Record rows as a sorted Arrow table. Errors: BundleError for a value of another type or None."""
    rows = list(rows)
    schema = arrow_schema(table)
    columns = []
    for field in schema:
        try:
            column = pa.array([getattr(row, field.name) for row in rows], type=field.type)
        except (pa.ArrowException, OverflowError) as error:
            raise BundleError(
                f"{table}.{field.name} holds a value that is no {field.type} ({error})"
            ) from error
        if not field.nullable and column.null_count:
            raise BundleError(f"{table}.{field.name} is required, but None in {column.null_count} rows")
        columns.append(column)
    result = pa.Table.from_arrays(columns, schema=schema)
    keys = [(name, "ascending") for name in SORT_COLUMNS if name in schema.names]
    return result.sort_by(keys) if keys and len(rows) > 1 else result


def names_of_today(table: str, names: Iterable[str]) -> list[str]:
    """The columns of a table of any schema version under today's names."""
    renamed = RENAMED.get(table, {})
    return [renamed.get(name, name) for name in names]


def as_of_today(table: str, data: pa.Table) -> pa.Table:
    """A table of any schema version under today's column names.

    What was written before an optional column existed did not measure it: NULL.
    """
    names = names_of_today(table, data.column_names)
    data = data.rename_columns(names)
    for field in arrow_schema(table):
        if field.nullable and field.name not in names:
            data = data.append_column(field, pa.nulls(data.num_rows, field.type))
    return data


def from_arrow(table: str, data: pa.Table) -> list[Any]:
    """The inverse of to_arrow. Errors: KeyError where a required column is missing."""
    record, _ = _ALL[table]
    names = arrow_schema(table).names
    data = as_of_today(table, data)
    columns = [data.column(name).to_pylist() for name in names]
    return [record(**dict(zip(names, values, strict=True))) for values in zip(*columns, strict=True)]


def _arrow_field(name: str, hint: Any) -> pa.Field:
    options = typing.get_args(hint) or (hint,)
    (plain,) = {*options} - {types.NoneType}
    return pa.field(name, _ARROW_TYPES[plain], nullable=len(options) > 1)


def _rule(hint: Any) -> Rule:
    options = (hint, *typing.get_args(hint))
    if bool in options:
        return FLAG
    (rule,) = next(option.__metadata__ for option in options if hasattr(option, "__metadata__"))
    return rule
