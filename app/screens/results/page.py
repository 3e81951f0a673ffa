"""Results: what an evaluation answers at one length in four sentences, loss over area, and its whole report.

The numbers are those of scores.json and data/results/evaluations*.json, the words the report's. The address holds
set and length.
"""

from __future__ import annotations

from html import escape

import streamlit as st

from routesparse.app.screens.results import figures
from routesparse.app.screens.results.files import Offered, method_rows, offered
from routesparse.app.shell import address, switch, view
from routesparse.app.ui import design, elements, exports, numbers, plot, states
from routesparse.engine.results import answers, report, tables, wording
from routesparse.engine.results.evaluations import MethodRow

EVALUATE = f"{states.PROGRAM} evaluate ruler --tasks niah_single_1,vt --lengths 4096 --n 10"
SCORE_AGAIN = f"{states.PROGRAM} evaluate SUITE --stage score"


@address.names("set length")
def render() -> None:
    """Draw the page."""
    st.html('<div class="rs-title">Results</div>')
    found, problems = offered()
    for problem in problems:
        states.field_error(f"{problem}.{' The others are shown.' if found else ''}")
    if problems:
        elements.note("A file of this home can be made anew from its predictions:")
        st.code(states.here(SCORE_AGAIN), language="bash", width=520)
    if found:
        _evaluation(_chosen(found))
    else:
        title = "No evaluation can be read" if problems else "No evaluations yet"
        lines = [
            "An evaluation runs a suite of tasks by several methods and compares each with dense attention.",
            "On this machine a small one takes minutes; it then stands here:",
        ]
        states.empty(title, lines, EVALUATE)


def _evaluation(chosen: Offered) -> None:
    length = _length(chosen)
    if length is None:
        states.empty("Nothing was predicted", [f"{chosen.source} holds no length with prompts."])
        return
    told = "".join(
        f"<p><b>{escape(question)}</b> {escape(answer)}</p>"
        for question, answer in answers.answers(chosen.found, length)
    )
    st.html(f'<div class="rs-concludes" role="status">{told}</div>')
    _front_card(chosen, length)
    st.download_button(
        "Every method, task and length: the report (HTML)",
        lambda: report.page(chosen.beside, chosen.found.command or chosen.source),
        file_name=f"{chosen.key}.html",
        mime="text/html",
        key="report",
        on_click="ignore",
    )


def _chosen(found: list[Offered]) -> Offered:
    """The evaluation that the address names, else the first."""
    by_key = {one.key: one for one in found}
    key = switch.chosen("set", by_key)
    if len(by_key) > 1:
        st.session_state["set-choice"] = key
        st.selectbox(
            "Evaluation",
            list(by_key),
            format_func=lambda name: by_key[name].label,
            key="set-choice",
            width="stretch",
            on_change=lambda: _other(st.session_state["set-choice"]),
        )
    return by_key[key]


def _other(key: str) -> None:
    """Another evaluation has lengths of its own."""
    st.query_params.pop("length", None)
    view.write(set=key)


def _length(chosen: Offered) -> int | None:
    """The length of the address, else the longest; buttons where there are several."""
    lengths = [length for length in reversed(chosen.found.lengths) if chosen.found.at(length)]
    if not lengths:
        return None
    value = switch.chosen("length", [str(length) for length in lengths])
    if len(lengths) > 1:
        options = {str(length): f"{length:,} tokens" for length in sorted(lengths)}
        switch.buttons("length", options, value)
    return int(value)


def _front_card(chosen: Offered, length: int) -> None:
    found, unit = chosen.found, wording.unit(chosen.found)
    drawn = [row for row in found.at(length) if row.area and row.change is not None]
    with elements.card("front", f"Loss over area at {length:,} tokens", "evaluation_front"):
        if not drawn:
            elements.sub("Not measured.")
            return
        chart = figures.loss_over_area(drawn, unit, design.current_theme())
        plot.show(chart, "front-chart", f"Loss over area, against dense, {unit}")
        low, high = min(row.n for row in drawn), max(row.n for row in drawn)
        exports.chart_foot(
            f"{found.suite}-{length}-loss-over-area",
            f"n = {low if low == high else f'{low} to {high}'} prompts · against dense, {unit} · 95 % paired bootstrap"
            f"{_doubts(drawn)} · line: front of the estimates alone · filled: ours · {found.source} · "
            f"source: {chosen.source}",
            method_rows(found, found.at(length)),
            "front",
            chart="front-chart",
        )


def _doubts(shown: list[MethodRow]) -> str:
    """What the chart alone would make look too sure, or does not show."""
    few = sum(row.few_clusters for row in shown)
    compared = [(row, row.change) for row in shown if row.change is not None and row.method != "dense"]
    still = sum(change.low == change.high for _, change in compared)
    lost = [f"{row.name} {wording.signed(row.change.value)}" for row in tables.beyond(shown) if row.change]
    oracles = [row.name for row in shown if tables.is_oracle(row)]
    an = "an oracle" if len(oracles) == 1 else "oracles"
    parts = (
        f", {numbers.several(few, 'method')} of few clusters" if few else "",
        f", {numbers.several(still, 'method')} without an interval: too few prompts differ" if still else "",
        f" · below the chart: {', '.join(lost)}" if lost else "",
        f" · {', '.join(oracles)}: {an}, which nobody can run, so never on the front" if oracles else "",
    )
    return "".join(parts)
