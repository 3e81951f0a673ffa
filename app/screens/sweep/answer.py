"""The cheapest setting that keeps the error below what the reader accepts, in words."""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import pandas as pd

from routesparse.app.screens.sweep.settings import COSTS, Error
from routesparse.app.ui import numbers
from routesparse.engine.stats.front import cheapest_within, closest

BY = {"area": "area", "time": "time"}
CAVEAT = (
    "This is one prompt: another one may need another setting. Each time is that of a single run, and noisy; run the "
    "sweep again before a small difference decides."
)


@dataclass(frozen=True)
class Answer:
    """The sentence as HTML, and the letter of the setting that it names; None where it names none."""

    html: str
    letter: str | None = None


def answer(rows: pd.DataFrame, error: Error, by: str, below: float | None) -> Answer:
    """rows: all settings (settings.table); by: a key of COSTS; below: the accepted error, None while none is typed."""
    errors, costs = list(rows[error.column]), list(rows[COSTS[by]])
    measured = rows[rows[error.column].notna() & rows[COSTS[by]].notna()]
    if measured.empty:
        return Answer(f"No setting has a measured {error.noun} yet, so none can be named.")
    values = measured[error.column]
    if below is None:
        ends = dict.fromkeys((error.text(values.min()), error.text(values.max())))
        span = f"{'from ' if len(ends) > 1 else ''}{' to '.join(ends)}"
        return Answer(
            f"Type the error that you accept: the cheapest setting below it is then named here. Measured: {span}."
        )
    place = cheapest_within(costs, errors, below)
    if place is None:
        nearest = closest(costs, errors)
        assert nearest is not None  # something was measured
        row = rows.iloc[nearest]
        return Answer(
            f"No setting keeps the {error.noun} below {error.text(below)}. The closest is {_setting(row, error)}.",
            str(row["letter"]),
        )
    row = rows.iloc[place]
    count = int((values < below).sum())
    return Answer(
        f"The cheapest by {BY[by]} below {error.text(below)} is {_setting(row, error)}. "
        f"{count} of {numbers.several(len(measured), 'measured setting')} "
        f"{'stays' if count == 1 else 'stay'} below it.",
        str(row["letter"]),
    )


def _setting(row: pd.Series, error: Error) -> str:
    faster = (
        "" if numbers.is_missing(row["speedup"]) else f", dense takes {numbers.times(row['speedup'])} as long"
    )
    return (
        f"<b>{row['letter']}, {escape(str(row['setting']))}</b>: {error.noun} {error.text(row[error.column])}, reads "
        f"{numbers.share(row['density'])} of the causal area, prefill {numbers.millis(row['total_ms'])}{faster}"
    )
