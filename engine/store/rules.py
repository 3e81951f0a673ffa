"""The kinds of rules that a column of a bundle may have (ranges.py has one for every column).

A rule says in words what it wants, and of an Arrow column without NULL which values it lets through.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Protocol

import pyarrow as pa
import pyarrow.compute as pc

INT32 = 2**31 - 1


class Rule(Protocol):
    """What one column may hold; NULL is not asked: whether it may be NULL says the table's schema."""

    @property
    def wanted(self) -> str:
        """The range in words, after "it must be"."""

    def holds(self, column: pa.Array) -> pa.BooleanArray:
        """Per value whether it is within the range; the column has no NULL."""


@dataclass(frozen=True)
class Whole:
    """A whole number in [low, high]."""

    low: int = 0
    high: int = INT32

    @property
    def wanted(self) -> str:
        """The range in words."""
        return f"a whole number from {self.low} to {self.high}"

    def holds(self, column: pa.Array) -> pa.BooleanArray:
        """Per value whether it is within the range."""
        return pc.and_(pc.greater_equal(column, self.low), pc.less_equal(column, self.high))


@dataclass(frozen=True)
class Number:
    """A number in [low, high]; ``bound``: NaN stands for one that was not computed; ``open``: Inf may be found."""

    low: float
    high: float
    bound: bool = False
    open: bool = False

    @property
    def wanted(self) -> str:
        """The range in words."""
        return f"a number from {self.low:g} to {self.high:g}"

    def holds(self, column: pa.Array) -> pa.BooleanArray:
        """Per value whether it is within the range."""
        found = pc.and_(pc.greater_equal(column, self.low), pc.less_equal(column, self.high))
        if self.bound:
            found = pc.or_(found, pc.is_nan(column))
        return pc.or_(found, pc.equal(column, float("inf"))) if self.open else found


@dataclass(frozen=True)
class OneOf:
    """One of these words."""

    allowed: tuple[str, ...]

    @property
    def wanted(self) -> str:
        """The words."""
        return f"one of {', '.join(self.allowed)}"

    def holds(self, column: pa.Array) -> pa.BooleanArray:
        """Per value whether it is one of the words."""
        return pc.is_in(column, pa.array(self.allowed))


@dataclass(frozen=True)
class Text:
    """At most ``most`` characters: printable ones of one line, or with a pattern what it matches."""

    most: int = 400
    pattern: str = ""
    lines: bool = False  # any characters

    @property
    def wanted(self) -> str:
        """The kind of text in words."""
        kind = "text" if self.lines else "printable text"
        return f"{kind} of at most {self.most:,} characters" + (
            f" that matches {self.pattern}" if self.pattern else ""
        )

    def holds(self, column: pa.Array) -> pa.BooleanArray:
        """Per value whether it is such a text."""
        found = pc.less_equal(pc.utf8_length(column), self.most)
        if self.pattern:
            found = pc.and_(found, pc.match_substring_regex(column, self.pattern))
        return found if self.lines else pc.and_(found, pc.utf8_is_printable(column))


@dataclass(frozen=True)
class Blob:
    """At most ``most`` bytes, a whole number of values of ``width`` bytes."""

    width: int
    most: int = 1 << 28

    @property
    def wanted(self) -> str:
        """The size in words."""
        return f"at most {self.most:,} bytes, {self.width} a value"

    def holds(self, column: pa.Array) -> pa.BooleanArray:
        """Per value whether it has such a size."""
        size = pc.binary_length(column).cast(pa.int64())
        whole = pc.equal(pc.multiply(pc.divide(size, self.width), self.width), size)
        return pc.and_(whole, pc.less_equal(size, self.most))


@dataclass(frozen=True)
class Flag:
    """True or false."""

    wanted: str = "true or false"

    def holds(self, column: pa.Array) -> pa.BooleanArray:
        """Every value."""
        return pc.is_valid(column)
