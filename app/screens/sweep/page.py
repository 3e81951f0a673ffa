"""Sweep: one prompt under several values of one setting: what each reads, how far off it is, how long it takes."""

from __future__ import annotations

from collections.abc import Hashable
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.sweep import figures, settings
from routesparse.app.screens.sweep.answer import BY, CAVEAT, answer
from routesparse.app.shell import boundary, jobs_view, navigate, switch, view
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import design, exports, glossary, numbers, plot, states
from routesparse.app.ui.tables import framed
from routesparse.engine.errors import StoreError
from routesparse.engine.jobs.job import Job
from routesparse.engine.store import queries, sweep_queries
from routesparse.engine.verdict import SIGNS

EVERY_S = 1.0
_LISTED = 30
_MOST_BELOW = 1e9  # more than any error that somebody would accept


def render() -> None:
    """Draw the page."""
    opened = access()
    named = st.query_params.get("sweep") or _newest(opened)
    if named is None:
        st.html('<div class="rs-title">Sweep</div>')
        states.empty(
            "No sweeps yet",
            [
                "A sweep analyses one prompt under several prices, time limits or calibrations, and shows which "
                "setting reads least for the error that you accept.",
                "On New run, choose a prompt and what to vary.",
            ],
        )
        navigate.link("New sweep", "new", vary="price", prices="0.25, 0.5, 1")
        return
    jobs = _jobs(opened, named)
    runs = sweep_queries.runs_of(opened.store, named)
    if not jobs and runs.empty:
        st.html('<div class="rs-title">Sweep</div>')
        states.problem(
            "This link leads nowhere",
            [
                f"No sweep {named[:40]!r} is known here: its runs and jobs were deleted, or the link is from another "
                "machine."
            ],
        )
        navigate.link("All jobs", "job")
        return
    rows = settings.table(jobs, runs)
    _header(opened, named, jobs, runs, rows)
    pending = any(jobs_view.changing(opened, job) for job in jobs)
    if pending:
        boundary.timed(_progress, EVERY_S)(named, _seen(opened, jobs))
    if rows["run_id"].notna().any():
        _results(opened, named, rows, pending)
    _table_card(opened, named, rows)


def _newest(opened: Access) -> str | None:
    """The sweep that was submitted last, named in the address from then on; the store's where no job is known."""
    try:
        found = opened.queue.sweeps(1)
    except StoreError as error:
        states.field_error(f"{error}. Stored runs are not affected.")
        found = []
    found = found or list(sweep_queries.sweeps(opened.store)["sweep"][:1])
    if found:
        view.write(sweep=found[0])
    return found[0] if found else None


def _jobs(opened: Access, sweep_id: str) -> list[Job]:
    """The jobs of the sweep; a broken queue leaves the stored runs readable."""
    try:
        opened.queue.requeue_lost()
        return opened.queue.sweep(sweep_id)
    except StoreError as error:
        states.field_error(f"{error}. Stored runs are not affected.")
        return []


def _header(opened: Access, named: str, jobs: list[Job], runs: pd.DataFrame, rows: pd.DataFrame) -> None:
    label = jobs[0].label if jobs else str(runs["prompt_name"].iloc[0])
    facts = [numbers.several(len(rows), "setting")]
    if len(runs):
        first = runs.iloc[0]
        facts += [f"{first['tokens']:,} tokens", str(first["model"]), numbers.device(str(first["device"]))]
        facts.append(f"policy {first['policy']}")
    st.html(
        f'<div class="rs-title">Sweep</div><div class="rs-sub"><b><bdi>{escape(label)}</bdi></b> · '
        f"{escape(' · '.join(facts))}{glossary.mark('sweep')}</div>"
    )
    _others(opened, named)


def _others(opened: Access, named: str) -> None:
    """The choice among several sweeps."""
    stored = sweep_queries.sweeps(opened.store).head(_LISTED)
    labels = {
        row.sweep: f"{row.prompt_name} · {numbers.several(int(row.runs), 'stored run')} · {row.sweep[:6]}"
        for row in stored.itertuples()
    }
    if len(labels) + (named not in labels) < 2:
        return
    labels.setdefault(named, f"this one · {named[:6]}")
    st.session_state["sweep-choice"] = named
    st.selectbox(
        "Sweep",
        list(labels),
        format_func=labels.__getitem__,
        key="sweep-choice",
        label_visibility="collapsed",
        width=420,
        on_change=lambda: view.write(sweep=st.session_state["sweep-choice"]),
    )


def _seen(opened: Access, jobs: list[Job]) -> tuple[object, ...]:
    """What makes the whole page draw itself again: the jobs' states, and which of their runs are stored."""
    stored = opened.store.run_ids()
    return tuple((job.id, job.state, job.run_id in stored, jobs_view.changing(opened, job)) for job in jobs)


def _progress(sweep_id: str, seen: tuple[object, ...]) -> None:
    """The part that is drawn again every second while a job is active."""
    opened = access()
    opened.queue.requeue_lost()
    opened.look_into_spool()
    jobs = opened.queue.sweep(sweep_id)
    if _seen(opened, jobs) != seen:
        st.rerun()
    with st.container(border=True, key="card-progress", gap="xsmall"):
        jobs_view.worker_note(opened.queue)
        jobs_view.sweep_line(opened.queue, jobs, link=False)
        for job in jobs:
            if job.state == "running":
                st.html(f'<div class="rs-note">Now: {escape(jobs_view.doing(job, None))}</div>')


def _results(opened: Access, named: str, rows: pd.DataFrame, pending: bool) -> None:
    key = settings.error_of(rows, st.query_params.get("error"))
    error = settings.ERRORS[key]
    by = switch.chosen("by", BY)
    with st.container(border=True, key="card-cheapest", gap="xsmall"):
        st.html('<div class="rs-h">The cheapest setting</div>')
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
            switch.buttons("error", {name: one.name for name, one in settings.ERRORS.items()}, key)
            switch.buttons("by", {name: f"cheapest by {word}" for name, word in BY.items()}, by)
        found = answer(rows, error, by, below)
        st.html(f'<div class="rs-plain" role="status">{found.html}</div>')
        if found.letter is not None:
            row = rows[rows["letter"] == found.letter].iloc[0]
            st.html(f'<div class="rs-note">Verdict on its run: {escape(row["verdict"])}</div>')
            navigate.link("Open its routing map", "map", run=queries.short_id(opened.store, row["run_id"]))
        waiting = "Some settings are not done yet, so this may change. " if pending else ""
        st.html(f'<div class="rs-note">{waiting}{CAVEAT}</div>')
    _front_card(named, rows, error, below, found.letter)


def _below() -> float | None:
    """The accepted error of the address; None where there is none, or another text."""
    try:
        below = float(st.query_params.get("below", ""))
    except ValueError:
        return None
    return below if 0 <= below <= _MOST_BELOW else None


def _accept() -> None:
    below = st.session_state["below-choice"]
    if below is None:
        st.query_params.pop("below", None)
    else:
        view.write(below=str(below))


def _front_card(
    named: str, rows: pd.DataFrame, error: settings.Error, below: float | None, letter: str | None
) -> None:
    drawn = rows[rows[error.column].notna()]
    with st.container(border=True, key="card-front", gap="xsmall"):
        st.html(f'<div class="rs-h">Error, area and time{glossary.mark("front")}</div>')
        if drawn.empty:
            ran = rows[rows["run_id"].notna()]
            if not ran["routed"].astype(bool).any():
                why = [
                    "Dense attention ran untouched: the prompt is below the break-even. Set break-even 0 to route it."
                ]
            else:
                why = [
                    f"No run of this sweep has a measured {error.noun}. Turn on “Always run dense too”, or choose an "
                    "audit, on New run."
                ]
            states.empty("Nothing to draw", why)
            return
        chart = figures.fronts(drawn, error, below, letter, design.current_theme())
        plot.show(chart, "fronts", f"{error.label} over area and over time")
        absent = [row.letter for row in rows.itertuples() if row.letter not in set(drawn["letter"])]
        missing = f" · not drawn, error not measured: {', '.join(absent)}" if absent else ""
        dense = int(drawn["dense_ms"].notna().sum())
        line = f" · dotted: dense, median of {numbers.several(dense, 'run')}" if dense else ""
        line_at = figures.accepted_line(drawn, error, below)
        accepted = "" if line_at is None else " · dashed: the accepted error"
        ringed = "" if letter is None else " · ringed: the setting named above"
        exports.chart_foot(
            f"sweep-{named[:8]}",
            f"{numbers.several(len(drawn), 'setting')}, one run each · {error.label}: "
            f"{error.counted(rows)} · filled, with the line: the front{ringed}{accepted}{line}{missing} · source: run",
            exported(rows, error),
            "front",
            chart="fronts",
        )


def exported(rows: pd.DataFrame, error: settings.Error) -> pd.DataFrame:
    """The rows to download: one a setting, with ``front_area`` and ``front_time`` of the error that is shown."""
    fronts = figures.on_front(rows, error)
    first = ["letter", "setting", "price", "budget", "calibration", "state", "verdict", "failure", "job"]
    return rows[[*first, *settings.MEASURED]].assign(
        error=error.column, **{f"front_{cost}": best for cost, best in fronts.items()}
    )


def _table_card(opened: Access, named: str, rows: pd.DataFrame) -> None:
    with st.container(border=True, key="card-settings-table", gap="xsmall"):
        st.html('<div class="rs-h">Settings</div>')
        st.html(_table_html(opened, rows))
        error = settings.ERRORS[settings.error_of(rows, st.query_params.get("error"))]
        exports.chart_foot(
            f"sweep-{named[:8]}-settings",
            f"n = {numbers.several(len(rows), 'setting')} of one prompt, one run each · "
            + "".join(f"{one.noun}: {one.counted(rows)} · " for one in settings.ERRORS.values())
            + "source: run and jobs",
            exported(rows, error),
            "settings",
        )


def _table_html(opened: Access, rows: pd.DataFrame) -> str:
    head = (
        '<th class="l"></th><th class="l">setting</th><th class="l">verdict</th>'
        + glossary.heading("kept", "density")
        + glossary.heading("KL, nats", "answer")
        + glossary.heading("audited error", "error")
        + '<th>prefill</th><th>dense</th><th>speedup</th><th class="l">open</th>'
    )
    body = "".join(_row_html(opened, row) for row in rows.to_dict("records"))
    return framed(f"<tr>{head}</tr>{body}")


def _row_html(opened: Access, row: dict[Hashable, Any]) -> str:
    row = {name: None if numbers.is_missing(value) else value for name, value in row.items()}
    first = f'<td class="l"><b>{row["letter"]}</b></td><td class="l">{escape(str(row["setting"]))}</td>'
    links = []
    if row["run_id"]:
        address = navigate.address("map", run=queries.short_id(opened.store, str(row["run_id"])))
        links.append(f'<a href="{escape(address)}" target="_self">map</a>')
    if row["job"]:
        links.append(
            f'<a href="{escape(navigate.address("job", job=str(row["job"])))}" target="_self">job</a>'
        )
    last = f'<td class="l">{" · ".join(links)}</td>'
    if not row["run_id"]:
        told = " · ".join(str(part) for part in (row["state"], row["failure"]) if part)
        failed = row["state"] == jobs_view.STATES["failed"]
        mark = f'<span class="rs-warn">{SIGNS["red"]}</span> ' if failed else ""
        return f'<tr>{first}<td class="l say no" colspan="7">{mark}{escape(told)}</td>{last}</tr>'
    error = settings.ERRORS
    cells = [
        numbers.share(row["density"]) if row["routed"] else "all, not routed",
        error["kl"].text(row["kl_nats"]).removesuffix(" nats"),
        error["audited"].text(row["mean_error"]),
        numbers.millis(row["total_ms"]),
        numbers.millis(row["dense_ms"]),
        numbers.times(row["speedup"]),
    ]
    body = "".join(
        f"<td{' class=no' if cell == numbers.NOT_MEASURED else ''}>{escape(cell)}</td>" for cell in cells
    )
    return f'<tr>{first}<td class="l say">{escape(str(row["verdict"]))}</td>{body}{last}</tr>'
