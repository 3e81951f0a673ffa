"""Numbers as pages and reports print them: with units, and "not measured" where there is none."""

from __future__ import annotations

import math
from typing import Any

import pandas as pd

from routesparse.engine import verdict

NOT_MEASURED = "not measured"


def is_missing(value: Any) -> bool:
    """True for None, NaN and pandas' NA: what "not measured" arrives as."""
    return bool(pd.isna(value))


def share(value: Any, digits: int = 1) -> str:
    """0.031 as "3.1 %"."""
    return NOT_MEASURED if is_missing(value) else f"{100 * value:.{digits}f} %"


def mass(value: Any, digits: int = 3) -> str:
    """0.9412 as "0.941"."""
    return NOT_MEASURED if is_missing(value) else f"{value:.{digits}f}"


def threshold(value: Any) -> str:
    """A τ with all its digits, two at least: 0.9 is "0.90", 0.895 is "0.895"."""
    if is_missing(value):
        return NOT_MEASURED
    short = f"{value:.2f}"
    return short if float(short) == value else f"{value:g}"


def small(value: Any) -> str:
    """Two digits that count, however small: 0.00002 is "0.00002", 1.2e-11 "1.2e-11"."""
    if is_missing(value):
        return NOT_MEASURED
    return f"{value:.2g}" if abs(value) < 1e-6 else f"{float(f'{value:.2g}'):.6f}".rstrip("0").rstrip(".")


def kl(value: Any) -> str:
    """A KL as the verdict prints it: "0.0021 nats", "below 0.0001 nats"."""
    return NOT_MEASURED if is_missing(value) else verdict.nats(value)


def bound(value: Any, digits: int = 3) -> str:
    """A lower bound, rounded down: 0.89996 is "0.899", because as "0.900" it would seem to reach a τ of 0.90."""
    return NOT_MEASURED if is_missing(value) else f"{rounded_down(value, digits):.{digits}f}"


def rounded_down(value: float, digits: int = 3) -> float:
    """What ``bound`` prints; a value that only floating point puts below a step stays on it."""
    return value if math.isinf(value) else math.floor(value * 10**digits + 1e-9) / 10**digits


def count(value: Any) -> str:
    """16384 as "16,384"."""
    return NOT_MEASURED if is_missing(value) else f"{int(value):,}"


def micros(value: Any) -> str:
    """Microseconds, in ms from a thousand on: "812 µs", "8.12 ms"."""
    if is_missing(value):
        return NOT_MEASURED
    return millis(value / 1000) if abs(value) >= 1000 else f"{value:.0f} µs"


def millis(value: Any) -> str:
    """Milliseconds, in seconds from a thousand on: "41.2 ms", "2.93 s"."""
    if is_missing(value):
        return NOT_MEASURED
    if abs(value) >= 1000:
        return f"{value / 1000:,.2f} s"
    return f"{value:.1f} ms" if abs(value) >= 10 else f"{value:.2f} ms"


def times(value: Any) -> str:
    """A speedup: "1.87×"."""
    return NOT_MEASURED if is_missing(value) else f"{value:.2f}×"


def limit(budget: str | None) -> str:
    """T_l as given on the command line: "35 % of dense", "800 µs a layer", "none"."""
    if budget is None:
        return "none"
    return f"{short_limit(budget)}{' a layer' if budget.endswith('us') else ' of dense'}"


def short_limit(budget: str) -> str:
    """T_l for a narrow column: "35 %" of dense, or "800 µs"; a text that is no limit as it stands."""
    if budget.endswith("us"):
        return f"{budget[:-2]} µs"
    try:
        return f"{100 * float(budget):g} %"
    except ValueError:
        return budget


def device(name: str) -> str:
    """A device's name without its trade marks."""
    for noise in ("(R)", "(TM)", " Processor", " CPU"):
        name = name.replace(noise, "")
    return name


def tokens(first: int, length: int) -> str:
    """A token range, the last one included: "0–8,191"."""
    return f"{first:,}–{first + length - 1:,}"


def size(count: int) -> str:
    """Bytes, in powers of ten: "812 B", "34 kB", "1.2 MB", "3.4 GB"."""
    for unit, scale in (("GB", 10**9), ("MB", 10**6), ("kB", 10**3)):
        if count >= scale:
            value = count / scale
            return f"{value:.1f} {unit}" if value < 100 and unit != "kB" else f"{value:,.0f} {unit}"
    return f"{count} B"


def several(count: int, noun: str) -> str:
    """A number with its noun: "1 earlier job", "3 earlier jobs"."""
    return f"{count:,} {noun}" if count == 1 else f"{count:,} {noun}s"
