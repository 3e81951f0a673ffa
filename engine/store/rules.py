"""The kinds of rules that a column of a bundle may have (ranges.py has them all), and columns held to them.

A rule says in words what it wants, and of an Arrow column without NULL which values it lets through; whether a column
may be NULL says the table's schema.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Annotated, Any

import pyarrow as pa
import pyarrow.compute as pc

from routesparse.engine.schema import FieldError, Holds, checked, from_json

INT32 = 2**31 - 1
_MOST_NESTED = 8  # objects and lists within one another; a run's settings have 2


@dataclass(frozen=True)
class Rule:
    """What one column may hold. wanted: in words, after "it must be"; holds: per value whether it is within."""

    wanted: str
    holds: Callable[[pa.Array], pa.BooleanArray]


def whole(low: int = 0, high: int = INT32) -> Rule:
    """A whole number in [low, high]."""
    return Rule(f"a whole number from {low} to {high}", lambda column: _between(column, low, high))


def number(low: float, high: float, *, bound: bool = False, open: bool = False) -> Rule:
    """A number in [low, high]; ``bound``: NaN stands for one that was not computed; ``open``: Inf may be found."""

    def holds(column: pa.Array) -> pa.BooleanArray:
        found = _between(column, low, high)
        if bound:
            found = pc.or_(found, pc.is_nan(column))
        return pc.or_(found, pc.equal(column, float("inf"))) if open else found

    return Rule(f"a number from {low:g} to {high:g}", holds)


def one_of(allowed: tuple[str, ...]) -> Rule:
    """One of these words."""
    return Rule(f"one of {', '.join(allowed)}", lambda column: pc.is_in(column, pa.array(allowed)))


def text(most: int = 400, pattern: str = "", *, lines: bool = False) -> Rule:
    """At most ``most`` characters, with a pattern what it matches; printable ones of one line, or any (``lines``)."""

    def holds(column: pa.Array) -> pa.BooleanArray:
        found = pc.less_equal(pc.utf8_length(column), most)
        if pattern:
            found = pc.and_(found, pc.match_substring_regex(column, pattern))
        return found if lines else pc.and_(found, pc.utf8_is_printable(column))

    kind = "text" if lines else "printable text"
    matches = f" that matches {pattern}" if pattern else ""
    return Rule(f"{kind} of at most {most:,} characters{matches}", holds)


def blob(width: int, most: int = 1 << 28) -> Rule:
    """At most ``most`` bytes, a whole number of values of ``width`` bytes."""

    def holds(column: pa.Array) -> pa.BooleanArray:
        size = pc.binary_length(column).cast(pa.int64())
        full = pc.equal(pc.multiply(pc.divide(size, width), width), size)
        return pc.and_(full, pc.less_equal(size, most))

    return Rule(f"at most {most:,} bytes, {width} a value", holds)


FLAG = Rule("true or false", pc.is_valid)


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


def _between(column: pa.Array, low: float, high: float) -> pa.BooleanArray:
    return pc.and_(pc.greater_equal(column, low), pc.less_equal(column, high))


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
