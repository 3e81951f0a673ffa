"""Columns of a bundle's tables held to their rules; the error names table, column and row."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc

from routesparse.engine.schema import FieldError, Holds, checked, from_json
from routesparse.engine.store.rules import Rule

_MOST_NESTED = 8  # objects and lists within one another; a run's settings have 2


def _flat(value: Any, most: int = _MOST_NESTED) -> bool:
    if not isinstance(value, dict | list):
        return True
    return most > 0 and all(
        _flat(entry, most - 1) for entry in (value.values() if isinstance(value, dict) else value)
    )


Object = Annotated[dict[str, Any], Holds(_flat, f"an object of at most {_MOST_NESTED} levels")]


def json_value(name: str, text: str, kind: Any) -> Any:
    """What a column's JSON says, as this kind. Errors: FieldError."""
    try:
        value = from_json(text)
    except ValueError as error:
        raise FieldError(name, text, f"JSON ({error})") from None
    return checked(kind, value, name)


def check_columns(name: str, table: pa.Table, rules: Mapping[str, Rule]) -> None:
    """Hold the columns of a table to their rules. Errors: FieldError for the first value out of range."""
    for column, rule in rules.items():
        check_column(f"{name}.{column}", table.column(column), rule)


def check_column(name: str, column: pa.ChunkedArray, rule: Rule) -> None:
    """Hold one column, called ``name`` in the error, to a rule. Errors: FieldError for the first value out of range."""
    # Most columns lack no value and are one piece: a bundle has some 240 of them to check.
    values = column.drop_null() if column.null_count else column
    values = values.chunk(0) if values.num_chunks == 1 else values.combine_chunks()
    if len(values) and not pc.all(rule.holds(values)).as_py():
        row = pc.index(pc.fill_null(rule.holds(column.combine_chunks()), True), False).as_py()
        found = column[row].as_py()
        if isinstance(found, bytes):
            raise FieldError(f"the size of {name} in row {row}", len(found), rule.wanted)
        raise FieldError(f"{name} in row {row}", found, rule.wanted)
