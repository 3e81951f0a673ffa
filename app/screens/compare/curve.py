"""Runs of one prompt as a trade: error over the area that is read and over time, and the cheapest within an error."""

from __future__ import annotations

from dataclasses import dataclass, replace
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import address, navigate, switch, view
from routesparse.app.ui import design, elements, exports, glossary, numbers, plot, states
from routesparse.engine.stats.front import front
from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView

CAVEAT = "This is one prompt, and each time that of a single run: run them again before a small difference decides."
COSTS = {"area": "density", "time": "total_ms"}  # what the front and the answer weigh an error against
_TITLES = {"area": "share of the causal area read", "time": "prefill, ms"}
_MOST_BELOW = 1e9  # more than any error that somebody would accept
_LOG_FROM = 10.0  # times between the smallest and the largest error
_ROOM = 0.08  # of the axis, beside the outermost points
_HOVER = "{0} · {1}\n{2} {3}\nreads {4} of the causal area\nprefill {5}, dense {6}"


@dataclass(frozen=True)
class Error:
    """One measure of error: its column, its name within a sentence, its unit, and what n counts."""

    column: str
    name: str
    unit: str
    term: str  # of the glossary
    counts: str

    def text(self, value: Any) -> str:
        """A value with its unit, with digits enough to tell it from a limit."""
        if numbers.is_missing(value):
            return numbers.NOT_MEASURED
        return f"{value:.3g}{self.unit}" if value < 1000 else f"{value:,.0f}{self.unit}"

    def counted(self, rows: pd.DataFrame) -> str:
        """What n counts in these runs."""
        audited = sorted({int(count) for count in rows["audit_rows"].dropna() if count})
        if self.column == "mean_error" and not audited:
            return numbers.NOT_MEASURED
        return self.counts.format(rows=" or ".join(map(str, audited)))

    @property
    def label(self) -> str:
        """The name with its unit, for an axis or a field."""
        return f"{self.name},{self.unit}" if self.unit else self.name


ERRORS = {
    "loss": Error(
        "loss_nats", "predicted loss", " nats", "loss", "mean over the prompt's tokens, from replayed rows"
    ),
    "kl": Error(
        "kl_nats", "KL of the next token", " nats", "answer", "n = 1 next token a run, against dense"
    ),
    "audited": Error(
        "mean_error", "audited output error", "", "error", "mean over {rows} rows of every sparse unit"
    ),
}


def cards(store: OwnerView, rows: pd.DataFrame, pending: bool) -> None:
    """The answer, and the picture behind it. rows: tables.sides_rows of runs of one prompt."""
    rows = rows.astype(
        {error.column: float for error in ERRORS.values()} | {"density": float, "dense_ms": float}
    )
    measured = [key for key, error in ERRORS.items() if rows[error.column].notna().any()]
    key = switch.chosen("error", [next(iter(measured), "kl"), *ERRORS])
    error = ERRORS[key]
    by = switch.chosen("by", COSTS)
    with elements.card("cheapest", "The cheapest setting"):
        if not measured:
            states.empty("Nothing to weigh", [_unmeasured(rows)])
            return
        with st.container(horizontal=True, gap="medium", vertical_alignment="bottom", key="cheapest-row"):
            below = _below()
            # The address decides; a bound field that appears late in a session is dropped from it.
            st.session_state["below-choice"] = below
            st.number_input(
                f"Accepted {error.label}",
                min_value=0.0,
                value=None,
                step=0.001,
                format="%.4g",
                key="below-choice",
                on_change=_accept,
                placeholder="such as 0.01",
                width=210,
                help=glossary.TERMS[error.term],
            )
            switch.buttons("error", {name: one.name for name, one in ERRORS.items()}, key)
            switch.buttons("by", {name: f"cheapest by {name}" for name in COSTS}, by)
        told, letter = answer(rows, error, by, below)
        st.html(f'<div class="rs-plain" role="status">{told}</div>')
        if letter is not None:
            row = rows[rows["letter"] == letter].iloc[0]
            elements.note(f"Verdict on its run: {row['verdict']}")
            navigate.link("Open its routing map", "map", run=queries.short_id(store, row["run_id"]))
        waiting = "Some settings are not done yet, so this may change. " if pending else ""
        elements.note(f"{waiting}{CAVEAT}")
    drawn = rows[rows[error.column].notna()]
    with elements.card("front", "Error, area and time", "front"):
        if drawn.empty:
            elements.sub(_unmeasured(rows))
            return
        chart = fronts(drawn, error, below, letter, design.current_theme())
        plot.show(chart, "fronts", f"{error.label} over area and over time")
        exports.chart_foot(
            "error-area-time",
            foot(rows, error, below, letter),
            exported(rows, error),
            "front",
            chart="fronts",
        )


def _unmeasured(rows: pd.DataFrame) -> str:
    if not rows["routed"].astype(bool).any():
        return (
            "Dense attention ran untouched: the prompt is below the break-even. Set break-even 0 to route it."
        )
    return "No run has this error measured. Turn on “Always run dense too”, or choose an audit, on New run."


def _below() -> float | None:
    """The accepted error of the address; None where there is none, or another text."""
    text = st.query_params.get("below", "")
    try:
        below = float(text)
    except ValueError:
        below = -1.0
    if 0 <= below <= _MOST_BELOW:
        return below
    address.absent("below", text)
    return None


def _accept() -> None:
    below = st.session_state["below-choice"]
    if below is None:
        st.query_params.pop("below", None)
    else:
        view.write(below=str(below))


def answer(rows: pd.DataFrame, error: Error, by: str, below: float | None) -> tuple[str, str | None]:
    """A sentence as HTML, and the letter of the run that it names. below: the accepted error, None while none is
    typed; by: a key of COSTS."""
    cost = COSTS[by]
    known = rows[rows[error.column].notna() & rows[cost].notna()]
    if known.empty:
        return f"No setting has a measured {error.name} yet, so none can be named.", None
    values = known[error.column]
    if below is None:
        ends = dict.fromkeys((error.text(values.min()), error.text(values.max())))
        span = f"{'from ' if len(ends) > 1 else ''}{' to '.join(ends)}"
        return (
            f"Type the error that you accept: the cheapest setting below it is named here. Measured: {span}.",
            None,
        )
    within = known[values < below]
    if within.empty:
        row = known.sort_values([error.column, cost], kind="stable").iloc[0]
        told = f"No setting keeps the {error.name} below {error.text(below)}. The closest is {_setting(row, error)}."
        return told, str(row["letter"])
    row = within.sort_values([cost, error.column], kind="stable").iloc[0]
    told = (
        f"The cheapest by {by} below {error.text(below)} is {_setting(row, error)}. {len(within)} of "
        f"{numbers.several(len(known), 'measured setting')} {'stays' if len(within) == 1 else 'stay'} below it."
    )
    return told, str(row["letter"])


def _setting(row: pd.Series, error: Error) -> str:
    speedup = row["speedup"]
    faster = "" if numbers.is_missing(speedup) else f", speedup {numbers.times(speedup)}"
    return (
        f"<b>{row['letter']}, {escape(str(row['side']))}</b>: {error.name} {error.text(row[error.column])}, reads "
        f"{numbers.share(row['density'])} of the causal area, prefill {numbers.millis(row['total_ms'])}{faster}"
    )


def foot(rows: pd.DataFrame, error: Error, below: float | None, letter: str | None) -> str:
    """What the picture shows, and what it leaves out."""
    drawn = rows[rows[error.column].notna()]
    absent = [one for one in rows["letter"] if one not in set(drawn["letter"])]
    dense = int(drawn["dense_ms"].notna().sum())
    parts = [
        f"{numbers.several(len(drawn), 'setting')}, one run each",
        f"{error.label}: {error.counted(rows)}",
        "filled, with the line: the front",
        "ringed: the setting named above" if letter else "",
        "dashed: the accepted error" if _accepted_line(drawn, error, below) is not None else "",
        f"dotted: dense, median of {numbers.several(dense, 'run')}" if dense else "",
        f"not drawn, error not measured: {', '.join(absent)}" if absent else "",
        "source: run",
    ]
    return " · ".join(filter(None, parts))


def exported(rows: pd.DataFrame, error: Error) -> pd.DataFrame:
    """The rows to download, with ``front_area`` and ``front_time`` of the error that is shown."""
    fronts = {f"front_{cost}": front(rows[column], rows[error.column]) for cost, column in COSTS.items()}
    return rows.assign(error=error.column, **fronts)


def _accepted_line(rows: pd.DataFrame, error: Error, below: float | None) -> float | None:
    """Where the accepted error is drawn: an error of 0 has no place on a logarithmic axis."""
    return below if below or not _is_log(rows[error.column]) else None


def _is_log(errors: pd.Series) -> bool:
    lowest, highest = float(errors.min()), float(errors.max())
    return lowest > 0 and highest / lowest > _LOG_FROM


def fronts(
    rows: pd.DataFrame, error: Error, below: float | None, named: str | None, theme: design.Theme
) -> dict[str, Any]:
    """Every run a letter, the front a line, over area and over time. rows: those whose error was measured; below: the
    accepted error, None for no line; named: the letter of the run that the page names, ringed."""
    errors = rows[error.column]
    below = _accepted_line(rows, error, below)
    known = [*errors, *([] if below is None else [below])]
    if _is_log(errors):
        air = (max(known) / min(known)) ** _ROOM
        y = plot.logarithmic(error.label, min(known) / air, max(known) * air)
    else:
        top = max(known) or 1.0
        y = plot.linear(error.label, -_ROOM * top, top * (1 + _ROOM))
    area = _panel(rows, error, "area", y, below, named, theme)
    time = _panel(
        rows, error, "time", replace(y, title=""), below, named, theme
    )  # its title stands beside it
    return plot.panels([area, time])


def _panel(
    rows: pd.DataFrame,
    error: Error,
    cost: str,
    y: plot.Axis,
    below: float | None,
    named: str | None,
    theme: design.Theme,
) -> dict[str, Any]:
    column = COSTS[cost]
    known = rows[rows[column].notna()]
    best = front(known[column], known[error.column])
    dense = float(rows["dense_ms"].median()) if cost == "time" and rows["dense_ms"].notna().any() else None
    costs = [*known[column], *([] if dense is None else [dense])]
    low, high = min(costs), max(costs)
    # Areas from nothing; times often lie close together.
    if cost == "area" or low == high:
        low, high = 0.0, (high or 1.0) * (1 + _ROOM)
    else:
        low, high = low - _ROOM * (high - low), high + _ROOM * (high - low)
    title = _TITLES[cost] + (", not from 0" if low else "")
    x = plot.linear(title, low, high, percent=cost == "area", most=4)
    line = known[best].sort_values([column, error.column])
    steps = plot.steps(line[column], line[error.column])
    marks = [plot.line(*steps, theme.accent, 1.6)]
    if below is not None:
        marks.append(plot.line(x.range, [below] * 2, theme.warn, 1.3, "8 5"))
    if dense is not None:
        marks.append(plot.line([dense] * 2, y.range, theme.mute, 1.2, "1.5 3"))
        marks.append(plot.label(dense, y.range[1], "dense", theme.mute, "end", dy=-4))
    marks.append(
        plot.points(
            known[column],
            known[error.column],
            [theme.accent if one else theme.panel for one in best],
            _HOVER,
            [_told(row, error) for row in known.to_dict("records")],
            size=10,
            edge=[theme.ink if letter == named else theme.accent for letter in known["letter"]],
            edge_width=[3.0 if letter == named else 1.4 for letter in known["letter"]],
        )
    )
    letters = list(zip(known[column], known[error.column], known["letter"], strict=True))
    marks.append(plot.beside(letters, theme.ink, [list(zip(*steps, strict=True))], strong=True))
    return plot.chart(x, y, marks, 340, theme, 22)


def _told(row: dict[Any, Any], error: Error) -> list[str]:
    return [
        row["letter"],
        row["side"],
        error.name,
        error.text(row[error.column]),
        numbers.share(row["density"]),
        numbers.millis(row["total_ms"]),
        numbers.millis(row["dense_ms"]),
    ]
