"""Bounds as text, rounded the safe way: an upper bound up, a lower bound down.

Rounded to the nearest digit, a bound would claim more than was shown: at most 0.00466% would read "at most 0.00%".
"""

from __future__ import annotations

import math
from decimal import ROUND_CEILING, Decimal

_SMALL = Decimal("0.0001")  # below it a number is printed with an exponent


def at_most(value: float, digits: int = 2, percent: bool = False) -> str:
    """An upper bound of at least 0, rounded up to so many digits that count: 0.004661 is "0.0047"."""
    if not math.isfinite(value):
        return f"{value:g}"
    return _text(_up(_decimal(value, percent), digits), percent)


def at_least(value: float, digits: int = 2, percent: bool = False) -> str:
    """A lower bound of a share, rounded down; so many digits of what it leaves of 1 count: 0.999534 is "0.99953"."""
    whole = Decimal(100 if percent else 1)
    return _text(whole - _up(whole - _decimal(value, percent), digits), percent)


def all_digits(value: float, percent: bool = False) -> str:
    """What somebody asked for, as it was written: 0.995 is "99.5%"."""
    return _text(_decimal(value, percent).normalize(), percent)


def _decimal(value: float, percent: bool) -> Decimal:
    # The shortest decimal number of this float: its binary digits would lift 0.07 to 0.071.
    return Decimal(repr(float(value))).scaleb(2 if percent else 0)


def _up(value: Decimal, digits: int) -> Decimal:
    if not value:
        return value
    return value.quantize(Decimal(1).scaleb(value.adjusted() - digits + 1), ROUND_CEILING)


def _text(value: Decimal, percent: bool) -> str:
    if percent:
        return f"{value:f}%"
    return f"{value:.1e}" if 0 < value < _SMALL else f"{value:f}"
