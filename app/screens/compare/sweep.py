"""A sweep, one prompt under several values of one setting: which one the address means, and what has no run yet."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import streamlit as st

from routesparse.app.shell import boundary, jobs_view, navigate, setting_words, switch, view
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import elements, glossary, numbers, states
from routesparse.app.ui.states import wrong
from routesparse.app.ui.tables import table
from routesparse.engine.errors import ConfigError, StoreError
from routesparse.engine.jobs import sweep
from routesparse.engine.jobs.job import Job
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import compare_queries
from routesparse.engine.verdict import SIGNS

EVERY_S = 1.0
_LISTED = 30


def chosen(opened: Access) -> str | None:
    """The sweep of the address, else the one that was submitted last, named in the address from then on; None where
    there is none."""
    named = st.query_params.get("sweep", "")
    if not named:
        try:
            found = opened.queue.sweeps(1)
        except StoreError as error:
            states.field_error(f"{error}. Stored runs are not affected.")
            found = []
        found = found or list(compare_queries.sweeps(opened.store)["sweep"][:1])
        if not found:
            states.empty(
                "No sweeps yet",
                [
                    "A sweep analyses one prompt under several prices or time limits, and shows which "
                    "setting reads least for the error that you accept.",
                    "On New run, choose a prompt and what to vary.",
                ],
            )
            navigate.link("New sweep", "new", vary="price", prices="0.25, 0.5, 1")
            return None
        named = found[0]
        view.write(sweep=named)
    return named


def run_ids(opened: Access, named: str) -> tuple[list[str], bool] | None:
    """Stored runs of a sweep in the order of its settings, and whether others may come; None where nothing is known.

    Draws what it is of, how far it is, and which settings have no run.
    """
    try:
        opened.queue.requeue_lost()
        jobs = opened.queue.sweep(named)
    except StoreError as error:
        states.field_error(f"{error}. Stored runs are not affected.")
        jobs = []
    runs = compare_queries.runs_of(opened.store, named)
    if not jobs and runs.empty:
        states.problem(
            "This link leads nowhere",
            [
                f"No sweep {named[:40]!r} is known here: its runs and jobs were deleted, or the link is from another "
                "machine."
            ],
        )
        navigate.link("All jobs", "runs")
        return None
    latest = sweep.newest(jobs)
    stored = [] if runs.empty else list(runs["run_id"])
    done = [str(job.run_id) for job in latest if job.run_id in stored]
    done += [run_id for run_id in stored if run_id not in {job.run_id for job in jobs}]
    label = jobs[0].label if jobs else str(runs["prompt_name"].iloc[0])
    missing = [job for job in latest if job.run_id not in stored]
    told = numbers.several(len(done) + len(missing), "setting")
    st.html(
        f'<div class="rs-sub"><b><bdi>{escape(label)}</bdi></b> · sweep of {told}{glossary.mark("sweep")}</div>'
    )
    _others(opened, named)
    pending = any(jobs_view.changing(opened, job) for job in jobs)
    if pending:
        boundary.timed(_progress, EVERY_S)(named, _seen(opened, jobs))
    elif jobs and named in jobs_view.cancelled(opened.queue):
        jobs_view.sweep_line(opened.queue, jobs, link=False)
    if missing:
        with elements.card("missing", "Settings without a run"):
            st.html(_missing_html(latest, missing))
    return done, pending


def _others(opened: Access, named: str) -> None:
    """The choice among several sweeps."""
    stored = compare_queries.sweeps(opened.store).head(_LISTED)
    labels = {
        row.sweep: f"{row.prompt_name} · {numbers.several(int(row.runs), 'stored run')} · {row.sweep[:6]}"
        for row in stored.itertuples()
    }
    labels.setdefault(named, f"this one · {named[:6]}")
    if len(labels) < 2:
        return
    look: dict[str, Any] = {"format_func": labels.__getitem__, "label_visibility": "collapsed", "width": 420}
    switch.field("sweep", "Sweep", list(labels), named, **look)


def _seen(opened: Access, jobs: Sequence[Job]) -> tuple[object, ...]:
    """What makes the whole page draw itself again: the jobs' states, and which of their runs are stored."""
    stored = opened.store.run_ids()
    return tuple((job.id, job.state, job.run_id in stored, jobs_view.changing(opened, job)) for job in jobs)


def _progress(named: str, seen: tuple[object, ...]) -> None:
    """The part that is drawn again every second while a job is active."""
    opened = access()
    opened.queue.requeue_lost()
    opened.look_into_spool()
    jobs = opened.queue.sweep(named)
    if _seen(opened, jobs) != seen:
        st.rerun()
    with elements.card("progress"):
        jobs_view.worker_note(opened.queue)
        jobs_view.sweep_line(opened.queue, jobs, link=False)
        for job in jobs:
            if job.state == "running":
                elements.note(f"Now: {jobs_view.doing(job, None)}")


def _missing_html(jobs: Sequence[Job], missing: Sequence[Job]) -> str:
    """What was asked of each job without a run, and how far it is or why it failed. jobs: all settings."""
    asked = {job.id: _asked(job) for job in jobs}
    names = sweep.varied_in([values for values in asked.values() if not isinstance(values, str)]) or ["price"]
    rows = []
    for job in missing:
        values = asked[job.id]
        unreadable = values if isinstance(values, str) else ""
        setting = (
            "unknown setting" if isinstance(values, str) else ", ".join(_words(n, values[n]) for n in names)
        )
        state = "finished, not in the store" if job.state == "done" else jobs_view.STATES[job.state]
        sign = f'<span class="rs-warn">{SIGNS["red"]}</span> ' if job.state == "failed" else ""
        why = wrong(job.failure.message) if job.failure else unreadable
        told = escape(" · ".join(filter(None, (state, why))))
        link = f'<a href="{escape(navigate.address("runs", job=job.id))}" target="_self">job</a>'
        rows.append((escape(setting), f'<td class="l say">{sign}{told}</td>', link))
    return table([], rows)


def _asked(job: Job) -> dict[str, Any] | str:
    """What a job was asked to do of what a sweep varies, or why it can't be read: a newer version's request."""
    try:
        asked = RunRequest.from_json(job.request_json)
    except ConfigError as error:
        return str(error)
    price = asked.config().price if asked.policy == "priced" else None
    return {"price": price, "budget": asked.budget, "calibration": asked.calibration}


def _words(name: str, value: Any) -> str:
    if name == "price":
        return "default price" if value is None else f"price {value:g}"
    return setting_words.time_limit(value) if name == "budget" else f"calibration {value or 'none'}"
