"""The jobs above the runs that they become: those that wait or run, the one that the address names, and ended ones."""

from __future__ import annotations

from datetime import datetime
from html import escape
from pathlib import Path

import streamlit as st

from routesparse.app.shell import boundary, jobs_view, navigate, new_run_address, setting_words, verdict_bar
from routesparse.app.shell.access import Access, access
from routesparse.app.shell.what_it_takes import of_job
from routesparse.app.ui import elements, numbers, states, tables
from routesparse.app.ui.states import wrong
from routesparse.engine.errors import InputError, RouteSparseError, StoreError
from routesparse.engine.jobs import log
from routesparse.engine.jobs.estimate import Estimate, preparation_estimate
from routesparse.engine.jobs.job import STAGES, FailureKind, Job
from routesparse.engine.jobs.kinds import Preparation, read_request
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import Request, RunRequest
from routesparse.engine.models.gguf import SUFFIX
from routesparse.engine.store import queries

_EVERY_S = 1.0
_LIST_EVERY_S = 2.0
_LISTED = 50
_FAR_OVER, _GRACE_S = 3.0, 10.0  # times the estimate's upper end, and at least so many seconds over it
FAILURES: dict[FailureKind, str] = {
    "prompt": "The prompt can't be analysed",
    "model": "The model can't be loaded",
    "unsupported_model": "This model family is not supported",
    "calibration": "The calibration, fit or quality target doesn't suit this job",
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


def cards(opened: Access) -> None:
    """Draw them; a broken queue leaves the runs readable."""
    try:
        named = st.query_params.get("job")
        job = None if named is None else opened.queue.job(named)
        if job is not None:
            # After the job has ended the page no longer refreshes itself.
            boundary.timed(_watch, _EVERY_S if jobs_view.changing(opened, job) else None)(job.id)
        elif named is not None:
            told = f"No job {named!r} is known here; it was deleted, or the link is from another machine."
            states.problem("This link leads nowhere", [told])
        if opened.queue.jobs(("queued", "running"), 1):
            boundary.timed(_active, _LIST_EVERY_S)(named)
        else:
            for sweep in jobs_view.cancelled(opened.queue):
                jobs_view.sweep_line(opened.queue, opened.queue.sweep(sweep))
        _ended(opened.queue)
    except StoreError as error:
        states.field_error(f"{error}. Stored runs are not affected.")


def _active(named: str | None) -> None:
    """A line each; a sweep is one line until its last job has ended."""
    queue = access().queue
    queue.requeue_lost()
    jobs = queue.jobs(("queued", "running"), _LISTED)
    if not jobs:
        st.rerun()
    others = [job for job in jobs if job.id != named and job.sweep is None]
    sweeps = dict.fromkeys(job.sweep for job in jobs if job.sweep is not None)
    sweeps |= dict.fromkeys(jobs_view.cancelled(queue))
    if not others and not sweeps:
        return
    with elements.card("active-jobs", "Active jobs"):
        jobs_view.worker_note(queue)
        for sweep in sweeps:
            jobs_view.sweep_line(queue, queue.sweep(sweep))
        for job in others:
            with st.container(
                horizontal=True, vertical_alignment="center", gap="small", key=f"quiet-job-{job.id}"
            ):
                st.html(f"<div>{_line(queue, job)}</div>", width="stretch")
                navigate.link("Open", "runs", job=job.id)


def _ended(queue: JobQueue) -> None:
    jobs = queue.jobs(("done", "failed", "cancelled"), _LISTED)
    if not jobs:
        return
    failed = sum(job.state == "failed" for job in jobs)
    title = f"Ended jobs: {len(jobs)}{f', {failed} failed' if failed else ''}"
    with st.expander(title, key="ended-jobs"):
        rows = [
            (
                f'<td class="l say">{_line(queue, job)}</td>',
                f'<a href="{escape(navigate.address("runs", job=job.id))}" target="_self">Open</a>',
            )
            for job in jobs
        ]
        st.html(tables.table([], rows))


def _line(queue: JobQueue, job: Job) -> str:
    """A job in two lines of HTML. Labels come from users: they are text."""
    style = ' class="rs-warn"' if job.state == "failed" else ""
    why = "" if job.failure is None else f": {FAILURES[job.failure.kind]}"
    doing = escape(jobs_view.doing(job, queue.position(job.id) if job.state == "queued" else None))
    try:
        settings = setting_words.asked(read_request(job.kind, job.request_json))
    except InputError:  # a newer version's: the job's own card says so
        settings = ""
    took = jobs_view.elapsed_s(job)
    facts = [
        numbers.duration(took) if took is not None else "",
        numbers.size(job.prompt_bytes) if job.prompt_bytes else "",
        jobs_view.minute(job.created_at),
    ]
    return (
        f"<b>{escape(job.label)}</b> <span{style}>· {doing}{escape(why)}</span> "
        f'<span class="rs-note">· {" · ".join(filter(None, facts))}<br>{escape(settings)}</span>'
    )


def _watch(job_id: str) -> None:
    """One job, drawn again every second while it is active."""
    opened = access()
    queue = opened.queue
    queue.requeue_lost()
    opened.look_into_spool()
    job = queue.job(job_id)
    if job is None:
        st.rerun()
    was = st.session_state.get("watched")
    now = (job.id, job.state, jobs_view.changing(opened, job))
    st.session_state["watched"] = now
    if was is not None and was[0] == job.id and was != now and not now[2]:
        # The whole page once more, without a timer and with the new run.
        st.rerun()
    with st.container(border=True, key="card-job", gap="small"):
        size = f" · {numbers.size(job.prompt_bytes)}" if job.prompt_bytes else ""
        st.html(
            f'<div class="rs-h">{escape(job.label)}: {escape(jobs_view.doing(job, queue.position(job.id)))}</div>'
            f'<div class="rs-note">Job {job.id} · submitted {jobs_view.clock(job.created_at)}{size}</div>'
            f"{_steps_html(job)}"
        )
        if job.state == "running" and job.total and job.done is not None:
            st.progress(min(1.0, job.done / job.total))
        request = read_request(job.kind, job.request_json)
        past = None if job.ended else _estimate(opened, job, request)
        st.html(elements.lines_html(_facts(queue, job, request, past)))
        took = jobs_view.elapsed_s(job)
        if past and took and took > max(_FAR_OVER * past.high_s, past.high_s + _GRACE_S):
            states.note(
                f"Far over the estimate: {numbers.duration(took)} so far, where "
                f"{numbers.several(past.jobs, 'earlier job')} took {numbers.span(past.low_s, past.high_s)}. Cancel it, "
                "or look into its log."
            )
        if not job.ended:
            jobs_view.worker_note(queue)
            st.button(
                "Cancel",
                key="cancel",
                disabled=job.cancel_requested,
                on_click=_try,
                args=("cancel", job.id),
                help="A waiting job ends at once, a running one after the layer, prompt or measurement that it is in",
            )
        for line in st.session_state.pop("job-problems", []):
            states.field_error(line)
        if job.state == "done":
            _done(opened, job, request)
        elif job.ended:
            _failed(job, request)
        _log(queue, job)
        navigate.link("Close", "runs")


def _steps_html(job: Job) -> str:
    """The stages as a row: done, now, to come; the last one reached is marked where the job failed."""
    # Measuring, compiling and weighing are listed only while they happen, dense where it was asked for.
    asked = '"measure_dense": true' in job.request_json or '"audit": "full"' in job.request_json
    rare = {
        "compile",
        "heads",
        *(() if job.kind == "profile" else ("profile",)),
        *(() if asked else ("dense",)),
    }
    names = [stage for stage in STAGES.get(job.kind, STAGES["analyse"]) if stage not in rare - {job.stage}]
    at = names.index(job.stage) if job.stage in names else -1
    marks = []
    for place, name in enumerate(names):
        style = ""
        if job.state == "done" or place < at:
            style = "done"
        elif place == at:
            style = {"running": "now", "failed": "bad"}.get(job.state, "")
        marks.append(f'<span class="{style}">{jobs_view.STAGE_NAMES[name]}</span>')
    return f'<div class="rs-steps">{"".join(marks)}</div>'


def _facts(queue: JobQueue, job: Job, request: Request, past: Estimate | None) -> list[tuple[str, str]]:
    took = jobs_view.elapsed_s(job)
    found = [("elapsed", "not started" if took is None else numbers.duration(took))]
    if past:
        told = f"{numbers.span(past.low_s, past.high_s)}, from {numbers.several(past.jobs, 'earlier job')}"
        found.append(("estimate", told))
    elif not job.ended:
        found.append(
            (
                "estimate",
                "no estimate yet: none like it has ended on this device; this one’s time will be the first",
            )
        )
    if job.state == "running":
        seen = next((worker.seen_at for worker in queue.workers() if worker.id == job.worker), None)
        ago = "not known" if seen is None else f"{numbers.duration(max(0.0, queue.now() - seen))} ago"
        found.append(("worker last reported", ago))
    if job.attempt > 1 or job.losses:
        found.append(("attempt", f"{job.attempt}, after {numbers.several(job.losses, 'lost worker')}"))
    return [*found, ("settings", setting_words.asked(request))]


def _estimate(opened: Access, job: Job, request: Request) -> Estimate | None:
    if isinstance(request, RunRequest):
        try:
            return of_job(opened, request, job)
        except InputError:
            return None  # the job's own failure says what is wrong
    assert isinstance(request, Preparation)
    return preparation_estimate(opened.queue, request)


def _done(opened: Access, job: Job, request: Request) -> None:
    if job.kind != "analyse":
        with st.container(horizontal=True, gap="medium"):
            if job.kind == "profile":
                navigate.link("Open the profile", "models", profile=str(job.result))
            elif job.kind == "calibrate":
                navigate.link("Open the calibration", "domains", names=str(job.result))
            navigate.link("Back to the model", "models", named=Path(request.model).name.removesuffix(SUFFIX))
    elif job.run_id in opened.store.run_ids():
        verdict_bar.of_run(opened.store, str(job.run_id))
        if st.button("Open the routing map", key="open-job-map", type="primary"):
            navigate.go("map", run=queries.short_id(opened.store, str(job.run_id)))
    elif jobs_view.changing(opened, job):
        elements.sub("Finished; the store is taking the run in.")
    else:
        told = "It was deleted, or its bundle was rejected: those are listed below with the reason."
        states.problem("The run of this job is not in the store", [told])


def _failed(job: Job, request: Request) -> None:
    if job.failure is not None:
        told = wrong(job.failure.message)
        lines = [f"{told[:1].upper()}{told[1:].rstrip('.')}."]
        if job.failure.kind == "profile":
            lines.append("Measure this machine on the page Models, then try again.")
        if job.failure.log_id:
            lines.append(f"Log entry {job.failure.log_id}.")
        states.problem(FAILURES[job.failure.kind], lines)
    else:
        states.empty("Cancelled", ["Nothing was stored."])
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        if job.keep_text:
            st.button(
                "Try again",
                key="retry",
                on_click=_try,
                args=("retry", job.id),
                help="The same texts and settings",
            )
        if isinstance(request, RunRequest):
            settings = new_run_address.of_request(request)
            navigate.link("Edit settings", "new", from_job=job.id, **settings)
        else:
            navigate.link("Back to the model", "models", named=Path(request.model).name.removesuffix(SUFFIX))
    again = st.session_state.pop("retried", None)
    if again:
        navigate.go("runs", job=again)


def _try(action: str, job_id: str) -> None:
    """Cancel or retry a job; what goes wrong is told on the page."""
    queue = access().queue
    try:
        if action == "cancel":
            queue.cancel(job_id)
        else:
            st.session_state["retried"] = queue.retry(job_id)
    except RouteSparseError as error:
        st.session_state["job-problems"] = [str(error)]


def _log(queue: JobQueue, job: Job) -> None:
    """Ids, stages and times; the workers write no prompt text."""
    lines = log.tail(queue.home, job.id)
    if not lines:
        if queue.beyond_host and job.attempt:
            st.html(
                '<div class="rs-note">Another host ran it; the log is in <code>logs/worker.jsonl</code> there.</div>'
            )
        return
    with st.expander("Log", key="job-log"):
        shown = []
        for line in lines:
            at = datetime.fromisoformat(line["time"]).strftime("%H:%M:%S")
            names = ("stage", "attempt", "kind", "seconds", "log_id")
            shown.append(
                " ".join([at, str(line["event"]), *(str(line[name]) for name in names if name in line)])
            )
        st.code("\n".join(shown), language=None)
