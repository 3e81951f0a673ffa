"""Checks for files that people may edit: every field's type and range, before anything is computed with it.

A check takes a value and the name of its field ("buckets[0].deltas.0.95") and raises FieldError where the value is
not what it wants. JSON's true is no number, 1.0 is no whole number, NaN and Infinity are nothing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from routesparse.engine.schema import (
    LARGEST,
    LARGEST_WHOLE,
    LONGEST_LINE,
    POSITIVE,
    FieldError,
    MissingFieldError,
    no_field_twice,
    read_json,
)

__all__ = ["POSITIVE", "no_field_twice", "read_json"]

Check = Callable[[Any, str], None]


def number(low: float = -LARGEST, high: float = LARGEST, wanted: str = "a finite number") -> Check:
    """A finite number in [low, high]; ``wanted`` says the range in words."""

    def check(value: Any, field: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int | float) or not low <= value <= high:
            raise FieldError(field, value, wanted)

    return check


def whole(low: int = 0, high: int = LARGEST_WHOLE) -> Check:
    """A whole number in [low, high]."""
    wanted = f"a whole number of at least {low}" + ("" if high == LARGEST_WHOLE else f" and at most {high}")

    def check(value: Any, field: str) -> None:
        if isinstance(value, bool) or not isinstance(value, int) or not low <= value <= high:
            raise FieldError(field, value, wanted)

    return check


def text(value: Any, field: str) -> None:
    """A text of one line that is not empty."""
    if value == "":
        raise FieldError(field, value, "a text of one line")
    line(value, field)


def line(value: Any, field: str) -> None:
    """A text of one line, perhaps empty."""
    if not isinstance(value, str) or not (value.isprintable() and len(value) <= LONGEST_LINE):
        raise FieldError(field, value, f"a text of one line, at most {LONGEST_LINE} characters")


def flag(value: Any, field: str) -> None:
    """true or false."""
    if not isinstance(value, bool):
        raise FieldError(field, value, "true or false")


def one_of(*allowed: str) -> Check:
    """One of these texts."""

    def check(value: Any, field: str) -> None:
        if value not in allowed:
            raise FieldError(field, value, f"one of {', '.join(allowed)}")

    return check


def optional(check: Check) -> Check:
    """null, or what the check wants."""

    def either(value: Any, field: str) -> None:
        if value is not None:
            check(value, field)

    return either


def items(each: Check, count: int | None = None, least: int = 0) -> Check:
    """A list of exactly ``count`` entries, or of at least ``least``."""
    wanted = "a list" if not least else f"a list of at least {least}"
    wanted = wanted if count is None else f"a list of {count}"

    def check(value: Any, field: str) -> None:
        if not isinstance(value, list | tuple) or len(value) < least or count not in (None, len(value)):
            raise FieldError(field, value, wanted)
        for place, entry in enumerate(value):
            each(entry, f"{field}[{place}]")

    return check


def record(
    required: Mapping[str, Check], others: Mapping[str, Check] | None = None, more: Check | None = None
) -> Check:
    """An object with all the required fields, perhaps the others, and no more but what ``more`` lets through.

    ``""`` names a whole file.
    """
    known = {**required, **(others or {})}

    def check(value: Any, field: str) -> None:
        dot = f"{field}." if field else ""
        if not isinstance(value, dict):
            raise FieldError(field or "the file", value, "an object")
        for name in sorted(required.keys() - value.keys()):
            raise MissingFieldError(f"{dot}{name}")
        for name, entry in value.items():
            check_entry = known.get(name, more)
            if check_entry is None:
                raise FieldError(f"{dot}{name}", entry, f"left out; known are {', '.join(sorted(known))}")
            check_entry(entry, f"{dot}{name}")

    return check


def plain(value: Any, field: str) -> None:
    """Anything that JSON can say, without NaN and Infinity: nothing is computed from it."""
    if isinstance(value, dict):
        for name, entry in value.items():
            plain(entry, f"{field}.{name}")
    elif isinstance(value, list | tuple):
        items(plain)(value, field)
    elif not isinstance(value, str | bool | None):
        number()(value, field)


def an_object(value: Any, field: str) -> None:
    """Any JSON object; see ``plain``."""
    if not isinstance(value, dict):
        raise FieldError(field, value, "an object")
    plain(value, field)


def ascending(values: Any, field: str, strictly: bool = True) -> None:
    """Numbers, each larger than the one before (or, unless strictly, at least as large)."""
    for place in range(1, len(values)):
        before, here = values[place - 1], values[place]
        if here < before or (strictly and here == before):
            wanted = f"larger than {before}, the one before it" if strictly else f"at least {before}"
            raise FieldError(f"{field}[{place}]", here, wanted)


def token_range(values: Any, field: str) -> None:
    """min_tokens <= max_tokens of an object that has both."""
    if values["max_tokens"] < values["min_tokens"]:
        raise FieldError(
            f"{field}.max_tokens", values["max_tokens"], f"at least min_tokens, {values['min_tokens']}"
        )
