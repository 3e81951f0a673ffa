"""Jobs in words: whether a worker is alive, what a job is doing, what to do about a failure, and lists of jobs."""

from __future__ import annotations

import time
from datetime import UTC, datetime
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, outcome, setting_words, verdict_bar
from routesparse.app.shell.access import Access
from routesparse.app.ui import numbers, states
from routesparse.engine.errors import InputError, RouteSparseError
from routesparse.engine.jobs import sweep
from routesparse.engine.jobs.job import STAGES, FailureKind, Job, State, WorkerSeen
from routesparse.engine.jobs.kinds import CalibrateRequest, ProfileRequest, read_request
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import queries, verdicts

ALIVE_S = 20.0  # a worker reports every few seconds
_HANDED_OVER_S = 60.0  # a done job's bundle reaches the store within seconds; later it is missing
START_WORKER = f"{states.PROGRAM} worker"
STATES: dict[State, str] = {
    "queued": "waiting",
    "running": "running",
    "done": "done",
    "failed": "failed",
    "cancelled": "cancelled",
}
STAGE_NAMES = {
    "load": "load the model",
    "tokenize": "tokenise",
    "profile": "measure this machine",
    "compile": "compile kernels for this GPU",
    "route": "route and execute",
    "dense": "compare with dense attention",
    "fold A": "fit on the first texts",
    "fold B": "take δ from the others",
    "write": "write the result",
}
_STEPS = {"analyse": "layer", "calibrate": "prompt"}
_TITLES: dict[FailureKind, str] = {
    "prompt": "The prompt can't be analysed",
    "model": "The model can't be loaded",
    "unsupported_model": "This model family is not supported",
    "calibration": "The calibration or the quality target doesn't fit this run",
    "profile": "The latency profile doesn't fit this machine",
    "config": "The settings contradict each other",
    "out_of_memory": "Out of memory",
    "numerics": "The model produced NaN or infinity",
    "disk_full": "The disk is full",
    "bundle": "The result could not be written",
    "store": "The result could not be stored",
    "worker_lost": "The worker was lost",
    "unexpected": "An unexpected error",
}


def failure_title(kind: FailureKind) -> str:
    """A failure's kind as a headline."""
    return _TITLES[kind]


def worker_alive(queue: JobQueue) -> bool:
    """Whether a worker has reported in the last seconds, or holds a job by a valid lease. Errors: StoreError."""
    return bool(live_workers(queue)) or queue.held()


def live_workers(queue: JobQueue) -> list[WorkerSeen]:
    """Workers that have reported in the last seconds. Errors: StoreError."""
    now = queue.now()
    return [worker for worker in queue.workers() if now - worker.seen_at < ALIVE_S]


def worker_note(queue: JobQueue) -> None:
    """Say that no worker runs and how to start one; nothing when one does."""
    if not worker_alive(queue):
        st.html(
            '<div class="rs-error">No worker is running: jobs wait until one starts. '
            f"<code>{escape(states.here('make run'))}</code> starts the dashboard and a worker; "
            f"<code>{escape(states.here(START_WORKER))}</code> starts a worker alone.</div>"
        )


def steps(job: Job) -> list[str]:
    """The stages that this job goes through; measuring and compiling are listed only while they happen."""
    dense = '"measure_dense": true' in job.request_json or '"audit": "full"' in job.request_json
    return [
        stage
        for stage in STAGES.get(job.kind, STAGES["analyse"])
        if (stage != "dense" or dense or job.stage == stage)
        and (stage not in ("profile", "compile") or job.kind == "profile" or job.stage == stage)
    ]


def steps_html(job: Job) -> str:
    """The stages as a row: done, now, to come; the last one reached is marked where the job failed."""
    names = steps(job)
    at = names.index(job.stage) if job.stage in names else -1
    marks = []
    for place, name in enumerate(names):
        style = ""
        if job.state == "done" or place < at:
            style = "done"
        elif place == at:
            style = {"running": "now", "failed": "bad"}.get(job.state, "")
        marks.append(f'<span class="{style}">{STAGE_NAMES[name]}</span>')
    return f'<div class="rs-steps">{"".join(marks)}</div>'


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
    if job.stage in ("route", "dense") and job.total:
        return f"{what}: layer {job.done} of {job.total}"
    if job.stage in ("fold A", "fold B") and job.total:
        return f"{what}: prompt {min((job.done or 0) + 1, job.total)} of {job.total}"
    if job.stage == "profile" and job.kind == "profile" and job.total:
        return f"{what}: {job.done} of {job.total}"
    if job.stage == "compile" and job.total:
        return f"compiling kernels for this GPU ({job.done} of {job.total})"
    return what


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
    """A sweep as one line: how many of its settings are done, and a button that cancels the others. jobs: all of one
    sweep, oldest first."""
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
            f"<div><b>{escape(jobs[0].label)}</b> <span{style}>· sweep, {escape(', '.join(parts))}</span> "
            f'<span class="rs-note">· {minute(jobs[0].created_at)}</span></div>',
            width="stretch",
        )
        if not all(job.ended for job in latest):
            st.button(
                "Cancel all",
                key=f"cancel-{sweep_id}",
                disabled=all(job.ended or job.cancel_requested for job in latest),
                on_click=_cancel_sweep,
                args=(queue, sweep_id),
                help="What waits ends at once, what runs after the layer that it is in; finished settings stay",
            )
        if link:
            navigate.link("Open sweep", "sweep", sweep=sweep_id)
    for line in st.session_state.pop(f"problems-{sweep_id}", []):
        states.field_error(line)


def _cancel_sweep(queue: JobQueue, sweep_id: str) -> None:
    try:
        queue.cancel_sweep(sweep_id)
    except RouteSparseError as error:
        st.session_state[f"problems-{sweep_id}"] = [str(error)]


def table(opened: Access, jobs: list[Job]) -> None:
    """One line per job with a link to its page, and one per sweep. Labels come from users: they are text."""
    queue = opened.queue
    drawn: set[str] = set()
    came = _outcomes(opened, jobs)
    if came:
        _heads()
    for job in jobs:
        if job.sweep is not None:
            if job.sweep not in drawn:
                sweep_line(queue, queue.sweep(job.sweep))
            drawn.add(job.sweep)
            continue
        with st.container(
            horizontal=True, vertical_alignment="center", gap="small", key=f"quiet-job-{job.id}"
        ):
            took = elapsed_s(job)
            facts = [
                doing(job, queue.position(job.id)) if not job.ended else STATES[job.state],
                numbers.duration(took) if took is not None else "",
                numbers.size(job.prompt_bytes) if job.prompt_bytes else "",
                minute(job.created_at),
            ]
            style = ' class="rs-warn"' if job.state == "failed" else ""
            # On a line of its own: beside the others it would push the link into another row.
            why = "" if job.failure is None else f"{escape(_TITLES[job.failure.kind])}<br>"
            st.html(
                f"<div><b>{escape(job.label)}</b> <span{style}>· {escape(facts[0])}</span> "
                f'<span class="rs-note">· {escape(" · ".join(f for f in facts[1:] if f))}<br>'
                f"{why}{escape(_settings(job))}</span></div>",
                width="stretch",
            )
            if came:
                st.html(came.get(job.run_id, _cells(dict.fromkeys(outcome.LABELS, ""))), width="content")
            navigate.link("Open", "job", job=job.id)


def _outcomes(opened: Access, jobs: list[Job]) -> dict[str | None, str]:
    """Run id -> its cells, of the jobs whose run is in the store."""
    single = [job for job in jobs if job.kind == "analyse" and job.sweep is None]
    ids = tuple(str(job.run_id) for job in single if job.state == "done")
    if not ids:
        return {}
    store = opened.store
    return store.made(
        "outcomes",
        [ids],
        lambda: _cells_of(queries.runs(store, queries.RunFilter(run_ids=ids))),
    )


def _cells_of(runs: pd.DataFrame) -> dict[str | None, str]:
    """Run id -> its cells; runs: rows of queries.runs."""
    if runs.empty:
        return {}
    found = verdicts.of_rows(runs)
    rows = pd.DataFrame(outcome.columns(runs, found))
    return {
        run_id: _cells(
            {
                "verdict": verdict_bar.cell_html(one),
                **{
                    name: "–" if numbers.is_missing(row[name]) else form % row[name]
                    for name, form in outcome.FORMATS.items()
                },
            }
        )
        for run_id, one, row in zip(runs["run_id"], found, rows.to_dict("records"), strict=True)
    }


def _heads() -> None:
    """The names of the cells, above them."""
    heads = {
        name: f'<span title="{escape(outcome.HELP[name])}">{label}</span>'
        for name, label in outcome.LABELS.items()
    }
    st.html(f'<div class="rs-came-heads">{_cells(heads)}</div>')


def _cells(html: dict[str, str]) -> str:
    cells = (f'<span data-name="{outcome.LABELS[name]}">{one}</span>' for name, one in html.items())
    return f'<div class="rs-came">{"".join(cells)}</div>'


def _settings(job: Job) -> str:
    """What the job was asked to do, in one line."""
    try:
        request = read_request(job.kind, job.request_json)
    except InputError:  # a newer version's: the job's own page says so
        return ""
    if isinstance(request, ProfileRequest | CalibrateRequest):
        return ", ".join(setting_words.of_preparation(request))
    assert isinstance(request, RunRequest)
    return setting_words.of_request(request)
