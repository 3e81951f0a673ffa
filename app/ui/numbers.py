"""Numbers as the pages print them: those of engine/export/numbers.py, which reports share, and those of pages alone."""

from __future__ import annotations

from typing import Any

from routesparse.engine.export.numbers import *  # noqa: F403
from routesparse.engine.export.numbers import NOT_MEASURED, is_missing, rounded_down, several, share


def share_passed(value: Any) -> str:
    """The share of what passed, rounded down: "100 %" means all of them."""
    return NOT_MEASURED if is_missing(value) else f"{100 * rounded_down(value, 2):.0f} %"


def signed(value: float, digits: int) -> str:
    """A difference: "+1.8", "-0.3", and "±0.0" for what rounds to nothing."""
    text = f"{value:+.{digits}f}"
    return text if float(text) else f"±{text[1:]}"


def whole_micros(value: Any) -> str:
    """Microseconds for a column that names them: "1,468"; more than an hour, which only a damaged row has, "1e+15"."""
    if is_missing(value):
        return NOT_MEASURED
    return f"{value:,.0f}" if value < 3.6e9 else f"{value:.2g}"


def duration(seconds: float) -> str:
    """Whole seconds for people: "0.4 s", "12 s", "3 min 20 s", "2 h 05 min"."""
    if seconds < 1:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60:02d} s"
    return f"{whole // 3600} h {whole % 3600 // 60:02d} min"


def span(low_s: float, high_s: float) -> str:
    """An estimate's range: "10 s to 25 s", or one duration where both read the same."""
    low, high = duration(low_s), duration(high_s)
    return low if low == high else f"{low} to {high}"


def uncertified(count: float, units: float) -> str:
    """How many units ran without certified mass: "46 of 64 units ran without certified mass"."""
    return f"{int(count):,} of {several(int(units), 'unit')} ran without certified mass"


def may_miss(confidence: float) -> str:
    """What chance alone may break: "at 95 % confidence one bound in 20 may be too high by chance"."""
    times = round(1 / (1 - confidence))
    return f"at {share(confidence, 0)} confidence one bound in {times:,} may be too high by chance"
