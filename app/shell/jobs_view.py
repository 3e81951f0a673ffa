"""Jobs in words: whether a worker is alive, what a job or a sweep is doing."""

from __future__ import annotations

import shlex
import time
from collections.abc import Sequence
from datetime import UTC, datetime
from html import escape
from typing import get_args

import streamlit as st

from routesparse.app.shell import navigate
from routesparse.app.shell.access import Access
from routesparse.app.ui import numbers, states
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.jobs import sweep
from routesparse.engine.jobs.job import Job, State, WorkerSeen
from routesparse.engine.jobs.queue import JobQueue

ALIVE_S = 20.0  # a worker reports every few seconds
_HANDED_OVER_S = 60.0  # a done job's bundle reaches the store within seconds; later it is missing
START_WORKER = f"{states.PROGRAM} worker"
STATES: dict[State, str] = {state: "waiting" if state == "queued" else state for state in get_args(State)}
STAGE_NAMES = {
    "load": "load the model",
    "tokenize": "tokenise",
    "profile": "measure this machine",
    "compile": "compile kernels for this GPU",
    "route": "route and execute",
    "dense": "compare with dense attention",
    "fold A": "fit on the first texts",
    "fold B": "take δ from the others",
    "heads": "weigh the heads",
    "windows": "measure each window at each price",
    "write": "write the result",
}
_STEPS = {"analyse": "layer", "calibrate": "prompt"}


def live_workers(queue: JobQueue) -> list[WorkerSeen]:
    """Workers that have reported in the last seconds. Errors: StoreError."""
    now = queue.now()
    return [worker for worker in queue.workers() if now - worker.seen_at < ALIVE_S]


def worker_note(queue: JobQueue) -> None:
    """Say that no worker runs and how to start one; nothing when one reports or holds a job. Errors: StoreError."""
    if not live_workers(queue) and not queue.held():
        st.html(
            '<div class="rs-error">No worker is running: jobs wait until one starts. '
            f"<code>{escape(states.here('make run'))}</code> starts the dashboard and a worker; "
            f"<code>{escape(states.here(START_WORKER))}</code> starts a worker alone.</div>"
        )


def to_fit(text: str, model: str, linked: bool = True) -> None:
    """How a model gets a fit: behind a text the command, and a link to the page that has a form for it."""
    command = states.here(f"{states.PROGRAM} fit {shlex.quote(model)} --prompts FOLDER --prompts FOLDER")
    st.html(f'<div class="rs-note">{escape(text)} <code>{escape(command)}</code></div>')
    if linked:
        navigate.link("Fit it on the page Models", "models", named=model)


def doing(job: Job, position: int | None) -> str:
    """What happens right now, in a few words."""
    if job.state == "queued":
        place = "next in line" if position == 1 else f"place {position} in the queue"
        lost = f"; {numbers.several(job.losses, 'worker')} lost, it will be tried again" if job.losses else ""
        return f"waiting, {place}{lost}"
    if job.state != "running":
        return STATES[job.state]
    if job.cancel_requested:
        return f"cancelling: the worker stops after this {_STEPS.get(job.kind, 'step')}"
    what = STAGE_NAMES.get(job.stage or "load", job.stage or "")
    if not job.total or (job.stage == "profile" and job.kind != "profile"):
        return what
    if job.stage in ("fold A", "fold B"):
        return f"{what}: prompt {min((job.done or 0) + 1, job.total)} of {job.total}"
    unit = "layer " if job.stage in ("route", "dense") else ""
    return f"{what}: {unit}{job.done} of {job.total}"


def elapsed_s(job: Job) -> float | None:
    """Seconds that the last attempt took or has taken; None before it began."""
    if job.started_at is None or job.state == "queued":
        return None
    return max(0.0, (job.finished_at or time.time()) - job.started_at)


def clock(seconds: float | None) -> str:
    """A time of day in UTC."""
    return "–" if seconds is None else datetime.fromtimestamp(seconds, UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


def minute(seconds: float) -> str:
    """A time of day in UTC without its seconds."""
    return f"{clock(seconds)[:16]} UTC"


def changing(opened: Access, job: Job) -> bool:
    """Whether another look may show something else: the job is active, or its run not yet in the store."""
    if job.state != "done" or job.kind != "analyse":
        return not job.ended
    late = job.finished_at is not None and time.time() - job.finished_at > _HANDED_OVER_S
    late = late and opened.taking_in() is None  # its bundle may stand behind many others
    return not late and job.run_id not in opened.store.run_ids()


def sweep_line(queue: JobQueue, jobs: list[Job], link: bool = True) -> None:
    """A sweep, or the texts of domains, as one line: how many are done, and a button that cancels the others. jobs:
    all of one sweep, oldest first."""
    texts = len({job.prompt_sha256 for job in jobs}) > 1
    latest = sweep.newest(jobs)
    states_of = [job.state for job in latest]
    parts = [f"{states_of.count('done')} of {len(latest)} done"]
    parts += [
        f"{states_of.count(state)} {STATES[state]}"
        for state in ("running", "queued", "failed", "cancelled")
        if state in states_of
    ]
    sweep_id = str(jobs[0].sweep)
    with st.container(
        horizontal=True, vertical_alignment="center", gap="small", key=f"quiet-sweep-{sweep_id}"
    ):
        style = ' class="rs-warn"' if "failed" in states_of else ""
        st.html(
            f"<div><b>{f'{len(latest)} texts' if texts else escape(jobs[0].label)}</b> "
            f"<span{style}>· {'domains' if texts else 'sweep'}, {escape(', '.join(parts))}</span> "
            f'<span class="rs-note">· {minute(jobs[0].created_at)}</span></div>',
            width="stretch",
        )
        if again := _again(latest):
            st.button(
                "Queue again", key=f"again-{sweep_id}", on_click=_change_sweep, args=(queue, sweep_id, again)
            )
        if not all(job.ended for job in latest):
            st.button(
                "Cancel all",
                key=f"cancel-{sweep_id}",
                disabled=all(job.ended or job.cancel_requested for job in latest),
                on_click=_change_sweep,
                args=(queue, sweep_id),
                help="What waits ends at once, what runs after the layer that it is in; finished settings stay",
            )
        if link and texts:
            navigate.link("Open domains", "domains")
        elif link:
            navigate.link("Open sweep", "compare", sweep=sweep_id)
    for line in st.session_state.pop(f"problems-{sweep_id}", []):
        states.field_error(line)


def cancelled(queue: JobQueue) -> list[str]:
    """The sweep that was cancelled here last, while some of it can be queued again."""
    found = st.session_state.get("cancelled-sweep", "")
    return [found] if found and _again(sweep.newest(queue.sweep(found))) else []


def _again(latest: list[Job]) -> list[str]:
    """The cancelled jobs whose texts are still there."""
    return [job.id for job in latest if job.state == "cancelled" and job.keep_text]


def _change_sweep(queue: JobQueue, sweep_id: str, again: Sequence[str] = ()) -> None:
    """Cancel it; or submit jobs of it again."""
    st.session_state["cancelled-sweep"] = sweep_id
    try:
        for job in again:
            queue.retry(job)
        if not again:
            queue.cancel_sweep(sweep_id)
    except RouteSparseError as error:
        st.session_state[f"problems-{sweep_id}"] = [str(error)]
