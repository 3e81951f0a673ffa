"""The grid of the page Fleet: a column a day, a row a figure; and an alarm as a sentence."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import pandas as pd

from routesparse.app.ui import design, grid, numbers
from routesparse.engine.stats.fleet_alarms import DAYS_BEFORE, FEWEST
from routesparse.engine.verdict import LEVELS, SIGNS, WORDS

ROW_PX = 28
CELL_PX = 41  # room for "16,384" and "▲60.0%"; a window of 1,440 pixels scrolls 30 days
TOO_FEW = "few"


def _millis(value: float) -> str:
    return numbers.NOT_MEASURED if numbers.is_missing(value) else f"{value:,.0f}"


# Column of fleet_queries.by_day -> its row's label, and how a value is printed.
ROWS: dict[str, tuple[str, Callable[[Any], str]]] = {
    "requests": ("requests recorded", "{:,}".format),
    "median_tokens": ("tokens, median", "{:,.0f}".format),
    "p95_tokens": ("tokens, 95th percentile", "{:,.0f}".format),
    "median_density": ("area kept, median", numbers.share),
    "worst_density": ("area kept, most", numbers.share),
    "fell_back": ("fell back, of units", numbers.share),
    "expanded": ("… to a larger budget", numbers.share),
    "dense_by_fallback": ("… to dense", numbers.share),
    **{level: (f"{SIGNS[level]} {WORDS[level].lower()}", "{:,}".format) for level in LEVELS},
    "certified": ("sparse units’ mass certified", numbers.share_passed),
    "drift_alarms": ("drift alarms", "{:,.0f}".format),
    "median_deciding_ms": ("deciding, median ms", _millis),
    "median_kernel_ms": ("attention, median ms", _millis),
}
# The row that shows a test's figure.
ROW_OF = {"red": "red", "drift": "drift_alarms", "fell_back": "fell_back", "area": "median_density"}
NAMES = {"red": "verdicts", "drift": "drift", "fell_back": "fallback", "area": "area kept"}


def cells(days: pd.DataFrame, tests: pd.DataFrame, columns: list[str], theme: design.Theme) -> dict[str, Any]:
    """The drawing for one model. days, tests: its rows of ``by_day`` and ``judge``; columns: every day, in order."""
    known = {(row["day"], ROW_OF[row["figure"]]): row for row in tests.to_dict("records")}
    drawn = []
    for day in days.to_dict("records"):
        few = day["requests"] < FEWEST
        for place, (name, (label, text)) in enumerate(ROWS.items()):
            measured = name != "drift_alarms" or day["drift_assessed"] > 0
            value = numbers.NOT_MEASURED
            if measured and not numbers.is_missing(day[name]):
                value = text(day[name])
            state = "too few" if few else known.get((day["day"], name), {}).get("state")
            alarm = state == "alarm"
            hidden = few and name != "requests"
            drawn.append(
                {
                    "row": place,
                    "column": columns.index(day["day"]),
                    "color": color(state, theme),
                    "text": TOO_FEW if hidden else f"▲{value}".replace(" ", "") if alarm else value,
                    "strong": alarm,
                    "hover": f"{day['day']}, {label}: {value}\n{_hover(day, name, known)}",
                }
            )
    labels = [label for label, _ in ROWS.values()]
    axes = (grid.Axis("", labels), grid.Axis("day, UTC", [day[5:] for day in columns]))
    frame = pd.DataFrame(drawn, columns=["row", "column", "color", "text", "strong", "hover"])
    return grid.drawing(frame, *axes, theme, ROW_PX, CELL_PX)


def color(state: str | None, theme: design.Theme) -> str:
    """The ground of a cell: in alarm, compared without one, too few to tell, or not compared at all."""
    shares = {"alarm": (theme.warn, 0.85), "no alarm": (theme.accent, 0.2), "too few": (theme.mute, 0.45)}
    tint, share = shares.get(state or "", (theme.mute, 0.0))
    return design.blend(theme.panel, tint, share)


def _hover(day: Mapping[str, Any], name: str, known: Mapping[tuple[str, str], dict[str, Any]]) -> str:
    rate = rate_words(day["least_one_in"], day["most_one_in"])
    lines = [f"n = {numbers.several(int(day['requests']), 'request')}, {rate}"]
    if day["requests"] < FEWEST:
        lines.append(f"fewer than {FEWEST}: too few to judge")
    elif test := known.get((day["day"], name)):
        lines.append(_compared(test))
    return "\n".join([*lines, "click: these runs"])


def _compared(test: Mapping[str, Any]) -> str:
    if test["state"] == "too few":
        return f"measured for {int(test['n'])} of them: too few to judge"
    if test["state"] == "nothing before":
        return f"fewer than {FEWEST} requests in the {DAYS_BEFORE} days before: nothing to compare with"
    return f"{'alarm' if test['state'] == 'alarm' else 'as in the days before'}: {counted(test)}"


def rate_words(least: float, most: float) -> str:
    """One in how many routed requests was recorded."""
    return f"1 in {least:,.0f} recorded" if least == most else f"1 in {least:,.0f} to {most:,.0f} recorded"


def counted(test: Mapping[str, Any]) -> str:
    """A test in words: k of n with its interval, against K of N."""
    limit, p = numbers.share(test["limit"]), test["p"]
    p = f"= {p:.2g}" if p >= 1e-6 else "< 0.000001"
    what = {
        "red": "requests were judged not safe",
        "drift": "requests raised a drift alarm",
        "fell_back": f"requests had more than {limit} of their units fall back",
        "area": f"requests kept more than {limit} of the causal area",
    }[str(test["figure"])]
    return (
        f"{test['count']:,} of {test['n']:,} {what} ({numbers.share(test['share'])}, 95 % interval "
        f"{numbers.share(test['low'])} to {numbers.share(test['high'])}), against {test['before_count']:,} of "
        f"{test['before_n']:,} ({numbers.share(test['before_share'])}) in the {DAYS_BEFORE} days before; "
        f"p {p}"
    )


def sentence(test: Mapping[str, Any]) -> str:
    """An alarm: model, day, figure, n, and against what."""
    return f"{test['model']}, {test['day']}: {counted(test)}"
