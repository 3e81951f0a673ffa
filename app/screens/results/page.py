"""Results: suites by task and length against dense, loss over area, ablations, and what H1 to H3 came to.

The numbers are those of scores.json and data/results/evaluations*.json, the words the report's. The address holds
the whole view: set, length and method.
"""

from __future__ import annotations

from dataclasses import replace
from html import escape

import streamlit as st

from routesparse.app.screens.results import figures, rows, shift_card
from routesparse.app.screens.results.files import Offered, offered
from routesparse.app.shell import switch, view
from routesparse.app.ui import design, exports, glossary, numbers, plot, states
from routesparse.app.ui.error_words import wrong
from routesparse.engine.results import answers, report, tables, wording
from routesparse.engine.results.evaluations import OURS, MethodRow

EVALUATE = f"{states.PROGRAM} evaluate ruler --tasks niah_single_1,vt --lengths 4096 --n 10"
SCORE_AGAIN = f"{states.PROGRAM} evaluate SUITE --stage score"


def render() -> None:
    """Draw the page."""
    st.html('<div class="rs-title">Results</div>')
    _evaluations()
    shift_card.card()


def _evaluations() -> None:
    found, problems = offered()
    for problem in problems:
        states.field_error(f"{problem}.{' The others are shown.' if found else ''}")
    if problems:
        st.html('<div class="rs-note">A file of this home can be made anew from its predictions:</div>')
        st.code(states.here(SCORE_AGAIN), language="bash", width=520)
    if not found:
        title = "No evaluation can be read" if problems else "No evaluations yet"
        lines = [
            "An evaluation runs a suite of tasks by several methods and compares each with dense attention."
        ]
        states.empty(
            title, [*lines, "On this machine a small one takes minutes; it then stands here:"], EVALUATE
        )
        return
    chosen = _chosen(found)
    length = _length(chosen)
    if length is None:
        states.empty("Nothing was predicted", [f"{chosen.source} holds no length with prompts."])
        return
    told = "".join(
        f"<p><b>{escape(question)}</b> {escape(answer)}</p>"
        for question, answer in answers.answers(chosen.found, length, chosen.verdicts)
    )
    st.html(f'<div class="rs-concludes" role="status">{told}</div>')
    st.html(f'<div class="rs-note">{escape(wording.about(chosen.found))} {escape(report.LIMITS)}</div>')
    _verdict_card(chosen)
    shown = chosen.found.at(length)
    picked = _method(shown)
    _front_card(chosen, length, shown, picked)
    _method_card(chosen, length, picked)
    _task_card(chosen, length, shown, picked)
    _table_card(chosen, "lengths", "Every length", tables.length_table(chosen.found))
    _table_card(chosen, "ablations", "Ablations", tables.ablation_table(chosen.found, length))
    _table_card(chosen, "controls", "Controls", tables.control_table(chosen.found))
    st.html(f'<div class="rs-note rs-command">{escape(chosen.found.made_by)}</div>')


def _chosen(found: list[Offered]) -> Offered:
    """The evaluation that the address names, else the first."""
    by_key = {one.key: one for one in found}
    key = switch.chosen("set", by_key)
    if st.query_params.get("set", key) != key:
        states.note(f"There is no evaluation {st.query_params['set'][:40]!r} here: another one is shown.")
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
    _replaced(by_key[key], found[0])
    return by_key[key]


def _replaced(chosen: Offered, first: Offered) -> None:
    """Say of an older table that there is a newer one, and where."""
    if chosen.replaced is None or first.replaced is not None:
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="replaced"):
        st.html(
            f'<div class="rs-note rs-warn">Shipped earlier ({chosen.replaced}): README cites the main table.</div>',
            width="content",
        )
        st.button(
            "Open the main table", key="quiet-main", type="tertiary", on_click=_other, args=(first.key,)
        )


def _other(key: str) -> None:
    """Another evaluation has lengths and methods of its own."""
    for name in ("length", "method"):
        st.query_params.pop(name, None)
    view.write(set=key)


def _length(chosen: Offered) -> int | None:
    """The length of the address, else the longest; buttons where there are several."""
    lengths = [length for length in reversed(chosen.found.lengths) if chosen.found.at(length)]
    if not lengths:
        return None
    value = switch.chosen("length", [str(length) for length in lengths])
    if (asked := st.query_params.get("length", value)) != value:
        states.note(f"There is no length {asked[:20]!r} here: another one is shown.")
    if len(lengths) > 1:
        options = {str(length): f"{length:,} tokens" for length in sorted(lengths)}
        switch.buttons("length", options, value)
    return int(value)


def _several(rows: list[MethodRow]) -> str:
    """n of all points: one number where they agree."""
    low, high = min(row.n for row in rows), max(row.n for row in rows)
    return f"{low}" if low == high else f"{low} to {high}"


def _method(shown: list[MethodRow]) -> MethodRow | None:
    """The method of the address, else ours at its default price."""
    others = [row for row in shown if row.method != "dense"]
    if not others:
        return None
    usual = next((row for row in others if row.name == OURS), others[0])
    named = st.query_params.get("method", usual.name)
    found = next((row for row in others if row.name == named), None)
    if found is None:
        states.note(f"There is no method {named[:40]!r} at this length: {usual.name} is shown.")
    return found or usual


def _verdict_card(chosen: Offered) -> None:
    with st.container(border=True, key="card-verdicts", gap="xsmall"):
        st.html('<div class="rs-h">H1 to H3: is choosing by input better?</div>')
        if not chosen.verdicts:
            st.html('<div class="rs-sub">Not tested: this file holds no verdicts. Score it again.</div>')
            return
        table = tables.verdict_table(chosen.verdicts, chosen.tested_on)
        told = tuple(tuple(wrong(cell) for cell in row) for row in table.rows)
        table = replace(table, rows=told)
        st.html(rows.html(table))
        exports.chart_foot(
            "hypotheses",
            f"{table.caption} · source: {chosen.source}",
            rows.of_table(table),
            "verdicts",
        )


def _front_card(chosen: Offered, length: int, shown: list[MethodRow], picked: MethodRow | None) -> None:
    found = chosen.found
    unit = wording.unit(found)
    drawn = figures.placed(shown)
    with st.container(border=True, key="card-front", gap="xsmall"):
        st.html(
            f'<div class="rs-h">Loss over area at {length:,} tokens{glossary.mark("evaluation_front")}</div>'
        )
        if not drawn:
            st.html('<div class="rs-sub">Not measured.</div>')
            return
        name = "" if picked is None else picked.name
        chart = figures.loss_over_area(drawn, unit, name, design.current_theme())
        plot.show(chart, "front-chart", f"Loss over area, against dense, {unit}")
        all_rows = rows.method_rows(found)
        exports.chart_foot(
            f"{found.suite}-{length}-loss-over-area",
            f"n = {_several(drawn)} prompts · against dense, {unit} · 95 % paired bootstrap"
            f"{_few(drawn)}{_beyond(drawn)} · line: front of the estimates alone{_oracles(drawn)} · filled: ours · "
            f"{found.source} · source: {chosen.source}",
            all_rows[all_rows["length"] == length],
            "front",
            chart="front-chart",
        )


def _beyond(shown: list[MethodRow]) -> str:
    """What loses more than the chart reaches down, by name."""
    lost = [f"{row.name} {wording.signed(row.change.value)}" for row in tables.beyond(shown) if row.change]
    return f" · below the chart: {', '.join(lost)}" if lost else ""


def _oracles(shown: list[MethodRow]) -> str:
    """Why an oracle is never on the front, wherever its point lies."""
    names = [row.name for row in shown if tables.is_oracle(row)]
    if not names:
        return ""
    told = "an oracle, which nobody can" if len(names) == 1 else "oracles, which nobody can"
    return f" · {', '.join(names)}: {told} run, so never on the front"


def _few(shown: list[MethodRow]) -> str:
    few = sum(row.few_clusters for row in shown)
    still = sum(
        row.change is not None and row.change.low == row.change.high for row in shown if row.method != "dense"
    )
    text = f", {numbers.several(few, 'method')} of few clusters" if few else ""
    return text + (
        f", {numbers.several(still, 'method')} without an interval: too few prompts differ" if still else ""
    )


def _method_card(chosen: Offered, length: int, picked: MethodRow | None) -> None:
    table = tables.main_table(chosen.found, length)
    with st.container(border=True, key="card-methods", gap="xsmall"):
        st.html(f'<div class="rs-h">Methods at {length:,} tokens</div>')
        st.html(rows.html(table, None if picked is None else picked.name))
        st.html(f'<div class="rs-note">{escape(wording.how(chosen.found))}</div>')
        all_rows = rows.method_rows(chosen.found)
        exports.chart_foot(
            f"{chosen.found.suite}-methods",
            f"{table.caption} · source: {chosen.source}",
            all_rows[all_rows["length"] == length],
            "methods",
        )


def _task_card(chosen: Offered, length: int, shown: list[MethodRow], picked: MethodRow | None) -> None:
    found = chosen.found
    with st.container(border=True, key="card-tasks", gap="xsmall"):
        st.html(f'<div class="rs-h">By task at {length:,} tokens</div>')
        if picked is None or not picked.tasks:
            st.html('<div class="rs-sub">Not measured: this suite has no scores by task.</div>')
            return
        names = [row.name for row in shown if row.method != "dense"]
        st.session_state["method-choice"] = picked.name
        st.selectbox(
            "Method",
            names,
            key="method-choice",
            width=320,
            on_change=lambda: view.write(method=st.session_state["method-choice"]),
        )
        drawn = figures.by_task(picked, design.current_theme())
        plot.show(drawn, "tasks-chart", f"{picked.name} against dense, by task")
        st.html(rows.html(tables.task_table(found, length), picked.name))
        all_rows = rows.task_rows(found)
        exports.chart_foot(
            f"{found.suite}-{length}-tasks",
            f"n = {wording.prompts(picked)} prompts of {picked.name} · points, 95 % paired bootstrap · in brackets: "
            f"dense's score; hollow: below 80 · table: {wording.MARKED} {found.source} · "
            f"source: {chosen.source}",
            all_rows[all_rows["length"] == length],
            "tasks",
            chart="tasks-chart",
        )


def _table_card(chosen: Offered, key: str, title: str, table: tables.Table) -> None:
    with st.container(border=True, key=f"card-{key}", gap="xsmall"):
        st.html(f'<div class="rs-h">{title}</div>')
        st.html(rows.html(table))
        exports.chart_foot(
            f"{chosen.found.suite}-{key}",
            f"{table.caption} · source: {chosen.source}",
            rows.of_table(table),
            key,
        )
