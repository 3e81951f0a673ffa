"""Does a day of a model's recorded requests differ from the days before by more than chance? The alarms of page Fleet.

Every figure is a count: k of a day's n requests are of a kind, and K of the N requests of the DAYS_BEFORE calendar days
before it. A request is of the kind "red" by its verdict, "drift" by its drift alarm (only prompts that were compared
with a calibration count), "fell back" where its share of units that fell back is beyond the upper quartile of the n + N
together, and "area" where the share of the causal area that it kept is above their median. The limit belongs to all
n + N, so it does not tell which of them are the day's.

Were the day like those before, its requests would be any n of the n + N, and k hypergeometric, whatever the figures'
distribution (Fisher's exact test, 1935; with a median, Mood's, 1954). More is worse, so one side is tested; of the
area both are. Holm's procedure over the figures of one day of one model: **with nothing changed a day raises an alarm
with probability LEVEL at most**, if requests are independent of each other. Requests of one client that come together
are not, and a day that goes on is looked at more than once.

A day, or what is before it, of fewer than FEWEST requests is not judged. numpy and pandas only.
"""

from __future__ import annotations

import datetime
from dataclasses import asdict, dataclass
from typing import Any, Literal

import numpy as np
import pandas as pd

from routesparse.engine.stats.paired import holm, wilson

LEVEL = 0.001
FEWEST = 20  # with 20 against 20, figures that are far apart can still reach LEVEL
DAYS_BEFORE = 7

State = Literal["alarm", "no alarm", "too few", "nothing before"]


@dataclass(frozen=True)
class Figure:
    """What is counted. column: of a request; quantile: of both sides together, where the kind is "beyond it"."""

    column: str
    quantile: float | None = None
    both_sides: bool = False


FIGURES: dict[str, Figure] = {
    "red": Figure("red"),
    "drift": Figure("drift_alarm"),
    "fell_back": Figure("fell_back", 0.75),
    "area": Figure("density", 0.5, both_sides=True),
}


@dataclass(frozen=True)
class Test:
    """One figure of one day of one model. Counts and shares are None where a side has no request."""

    model: str
    day: str  # "2026-11-23", UTC
    figure: str
    state: State
    n: int
    count: int
    share: float | None
    low: float | None  # 95 % interval of the share (Wilson)
    high: float | None
    before_n: int
    before_count: int
    before_share: float | None
    limit: float | None  # beyond which a request is counted; None: it is a yes or no
    p: float | None  # adjusted over the day's figures


def judge(requests: pd.DataFrame, level: float = LEVEL) -> pd.DataFrame:
    """A row for each model, day and figure, the columns those of ``Test``.

    requests: ``model``, ``day`` and the columns of FIGURES, NaN where not measured.
    """
    tests: list[Test] = []
    for model, own in requests.groupby("model"):
        own = own.sort_values("day", kind="stable")
        days = own["day"].to_numpy(str)
        values = {name: own[figure.column].to_numpy(float) for name, figure in FIGURES.items()}
        for day in np.unique(days):
            earliest = datetime.date.fromisoformat(day) - datetime.timedelta(DAYS_BEFORE)
            start, first = np.searchsorted(days, [earliest.isoformat(), day])
            end = np.searchsorted(days, day, side="right")
            found = {
                name: _test(figure, values[name][first:end], values[name][start:first])
                for name, figure in FIGURES.items()
            }
            adjusted = holm({name: p for name, (p, _) in found.items() if p is not None})
            for name, (p, counted) in found.items():
                state = _state(counted["n"], counted["before_n"], p is not None and adjusted[name] <= level)
                tests.append(Test(str(model), str(day), name, state, p=adjusted.get(name), **counted))
    return pd.DataFrame([asdict(test) for test in tests], columns=list(Test.__dataclass_fields__))


def _state(n: int, before: int, alarm: bool) -> State:
    if n < FEWEST:
        return "too few"
    if before < FEWEST:
        return "nothing before"
    return "alarm" if alarm else "no alarm"


def _test(figure: Figure, day: np.ndarray, before: np.ndarray) -> tuple[float | None, dict[str, Any]]:
    """The p-value, None where a side has too few requests, and what was counted."""
    day, before = day[~np.isnan(day)], before[~np.isnan(before)]
    n, others = len(day), len(before)
    limit = None
    if figure.quantile is not None and n + others:
        limit = float(np.quantile(np.concatenate([day, before]), figure.quantile, method="lower"))
    count, before_count = (int((side > (limit or 0.0)).sum()) for side in (day, before))
    p = None
    if min(n, others) >= FEWEST:
        chances = _chances(n, others, count + before_count)
        p = float(chances[count:].sum())
        if figure.both_sides:
            p = 2 * min(p, float(chances[: count + 1].sum()))
        p = min(1.0, p)
    low, high = wilson(count / n, n) if n else (None, None)
    return p, {
        "n": n,
        "count": count,
        "share": count / n if n else None,
        "low": low,
        "high": high,
        "before_n": others,
        "before_count": before_count,
        "before_share": before_count / others if others else None,
        "limit": limit,
    }


def _chances(n: int, others: int, kind: int) -> np.ndarray:
    """Of n drawn from n + others, of which ``kind`` are of the kind: the chance of 0 to n of the kind among them."""
    logs = np.concatenate([[0.0], np.cumsum(np.log(np.arange(1, n + others + 1)))])  # of factorials

    def choose(total: int, some: np.ndarray) -> np.ndarray:
        return np.asarray(logs[total] - logs[some] - logs[total - some])

    counts = np.arange(max(0, kind - others), min(n, kind) + 1)
    chances = np.zeros(n + 1)
    chances[counts] = np.exp(
        choose(kind, counts) + choose(n + others - kind, n - counts) - choose(n + others, np.array(n))
    )
    return chances
