"""Jobs: what a job is doing, second by second while it is active; without one in the address, all jobs."""

from __future__ import annotations

from datetime import datetime
from html import escape
from pathlib import Path

import streamlit as st

from routesparse.app.shell import boundary, jobs_view, navigate, new_run_address, setting_words, verdict_bar
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import facts, numbers, states
from routesparse.app.ui.error_words import wrong
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.jobs import log
from routesparse.engine.jobs.estimate import Estimate, job_estimate, preparation_estimate
from routesparse.engine.jobs.job import Job
from routesparse.engine.jobs.kinds import CalibrateRequest, ProfileRequest, read_request
from routesparse.engine.jobs.request import Request, RunRequest
from routesparse.engine.store import queries

EVERY_S = 1.0
_LIST_EVERY_S = 2.0
_LISTED = 50
_FAR_OVER, _GRACE_S = 3.0, 10.0  # times the estimate's upper end, and at least so many seconds over it


def render() -> None:
    """Draw the page."""
    opened = access()
    named = st.query_params.get("job")
    if named is None:
        st.html('<div class="rs-title">Jobs</div>')
        active = bool(opened.queue.jobs(("queued", "running"), 1))
        boundary.timed(_list, _LIST_EVERY_S if active else None)()
        return
    job = opened.queue.job(named)
    if job is None:
        st.html('<div class="rs-title">Job</div>')
        states.problem(
            "This link leads nowhere",
            [f"No job {named!r} is known here; it was deleted, or the link is from another machine."],
        )
        navigate.link("All jobs", "job")
        return
    st.html(
        f'<div class="rs-title">{escape(job.label)}</div><div class="rs-sub">Job {job.id} · submitted '
        f"{jobs_view.clock(job.created_at)}{f' · {numbers.size(job.prompt_bytes)}' if job.prompt_bytes else ''}</div>"
    )
    # After the job has ended the page no longer refreshes itself.
    boundary.timed(_watch, EVERY_S if jobs_view.changing(opened, job) else None)(job.id)


def _list() -> None:
    queue = access().queue
    queue.requeue_lost()
    jobs_view.worker_note(queue)
    jobs = queue.jobs(limit=_LISTED)
    if not jobs:
        states.empty("No jobs yet", ["Choose a prompt on the New run page; its job appears here."])
        navigate.link("New run", "new")
        return
    # A sweep is one line, among the active ones until its last job has ended.
    going = {j.sweep for j in jobs if not j.ended} - {None}
    for title, wanted in (
        ("Active", [j for j in jobs if not j.ended or j.sweep in going]),
        ("Ended", [j for j in jobs if j.ended and j.sweep not in going]),
    ):
        if wanted:
            with st.container(border=True, key=f"card-jobs-{title}", gap="xsmall"):
                st.html(f'<div class="rs-h">{title}</div>')
                jobs_view.table(access(), wanted)


def _watch(job_id: str) -> None:
    """The part that is drawn again every second while the job is active."""
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
    if was is not None and was != now and not now[2]:
        # The whole page once more, without a timer.
        st.rerun()
    with st.container(border=True, key="card-job", gap="small"):
        st.html(
            f'<div class="rs-h">{escape(jobs_view.doing(job, queue.position(job.id)))}</div>'
            + jobs_view.steps_html(job)
            + _bar(job)
        )
        request = read_request(job.kind, job.request_json)
        past = None if job.ended else _estimate(opened, job, request)
        st.html(facts.lines_html(_facts(opened, job, request, past)))
        took = jobs_view.elapsed_s(job)
        if past and took and not job.ended and took > max(_FAR_OVER * past.high_s, past.high_s + _GRACE_S):
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
                on_click=_cancel,
                args=(opened, job.id),
                help="A waiting job ends at once, a running one after the layer, prompt or measurement that it is in",
            )
    for line in st.session_state.pop("job-problems", []):
        states.field_error(line)
    if job.state == "done":
        _done(opened, job)
    elif job.ended:
        _failed(opened, job)
    _log(opened, job)


def _bar(job: Job) -> str:
    if job.state != "running" or not job.total or job.done is None:
        return ""
    return f'<div class="rs-progress"><i style="width:{100 * job.done / job.total:.0f}%"></i></div>'


def _facts(opened: Access, job: Job, request: Request, past: Estimate | None) -> list[tuple[str, str]]:
    took = jobs_view.elapsed_s(job)
    facts = [("elapsed", "not started" if took is None else numbers.duration(took))]
    if not job.ended:
        facts.append(
            (
                "estimate",
                f"{numbers.span(past.low_s, past.high_s)}, from {numbers.several(past.jobs, 'earlier job')}",
            )
            if past
            else ("estimate", "no estimate yet: the first job measures this machine")
        )
    if job.state == "running":
        facts.append(("worker last reported", _reported(opened, job)))
    if job.attempt > 1 or job.losses:
        facts.append(("attempt", f"{job.attempt}, after {numbers.several(job.losses, 'lost worker')}"))
    return [*facts, ("settings", ", ".join(_settings(request)))]


def _reported(opened: Access, job: Job) -> str:
    """How long ago the job's worker was heard; a live one reports every few seconds."""
    queue = opened.queue
    seen = next((worker.seen_at for worker in queue.workers() if worker.id == job.worker), None)
    return "not known" if seen is None else f"{numbers.duration(max(0.0, queue.now() - seen))} ago"


def _estimate(opened: Access, job: Job, request: Request) -> Estimate | None:
    if isinstance(request, ProfileRequest | CalibrateRequest):
        return preparation_estimate(opened.queue, request)
    return job_estimate(opened.queue, request, job.prompt_bytes) if isinstance(request, RunRequest) else None


def _settings(request: Request) -> list[str]:
    if isinstance(request, ProfileRequest | CalibrateRequest):
        return setting_words.of_preparation(request)
    assert isinstance(request, RunRequest)
    return [
        f"model {Path(request.model).name}",
        *setting_words.rope(request.rope).values(),
        *setting_words.router_asked(request).values(),
        setting_words.time_limit(request.budget),
        "segment by the device" if request.segment is None else f"segment {request.segment:,}",
        f"calibration {request.calibration or 'none'}",
        f"audit {request.audit}",
        "text kept" if request.keep_text else "hash only",
    ]


def _done(opened: Access, job: Job) -> None:
    if job.kind != "analyse":
        _prepared(job)
        return
    if job.run_id in opened.store.run_ids():
        verdict_bar.of_run(opened.store, str(job.run_id))
        with st.container(horizontal=True, gap="medium"):
            if st.button("Open the routing map", key="open-map", type="primary"):
                navigate.go("map", run=queries.short_id(opened.store, str(job.run_id)))
            navigate.link("All runs", "runs")
    elif jobs_view.changing(opened, job):
        st.html('<div class="rs-sub">Finished; the store is taking the run in.</div>')
    else:
        states.problem(
            "The run of this job is not in the store",
            [
                "It was deleted, or its bundle was rejected: the Runs page lists rejected bundles with the reason."
            ],
        )
        navigate.link("Runs", "runs")


def _prepared(job: Job) -> None:
    """Where what the job made is shown, and the model that it was made for."""
    with st.container(horizontal=True, gap="medium"):
        if job.kind == "profile":
            navigate.link("Open the profile", "calibration", profile=str(job.result))
        else:
            navigate.link("Open the calibration", "calibration", names=str(job.result))
        navigate.link("Back to the model", "models", model=_model(job))


def _model(job: Job) -> str:
    request = read_request(job.kind, job.request_json)
    assert isinstance(request, ProfileRequest | CalibrateRequest)
    return Path(request.model).name


def _failed(opened: Access, job: Job) -> None:
    if job.failure is not None:
        told = wrong(job.failure.message)
        lines = [f"{told[:1].upper()}{told[1:].rstrip('.')}."]
        if job.failure.kind == "profile":
            lines.append("Measure this machine on the page Models, then try again.")
        if job.failure.log_id:
            lines.append(f"Log entry {job.failure.log_id}.")
        states.problem(jobs_view.failure_title(job.failure.kind), lines)
    else:
        states.empty("Cancelled", ["Nothing was stored."])
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        if job.keep_text:
            st.button(
                "Try again",
                key="retry",
                on_click=_retry,
                args=(opened, job.id),
                help="The same texts and settings",
            )
        if job.kind != "analyse":
            navigate.link("Back to the model", "models", model=_model(job))
        else:
            settings = new_run_address.of_request(RunRequest.from_json(job.request_json))
            navigate.link("Edit settings", "new", from_job=job.id, **settings)
            navigate.link("New run", "new")
    again = st.session_state.pop("retried", None)
    if again:
        navigate.go("job", job=again)


def _cancel(opened: Access, job_id: str) -> None:
    try:
        opened.queue.cancel(job_id)
    except RouteSparseError as error:
        st.session_state["job-problems"] = [str(error)]


def _retry(opened: Access, job_id: str) -> None:
    try:
        st.session_state["retried"] = opened.queue.retry(job_id)
    except RouteSparseError as error:
        st.session_state["job-problems"] = [str(error)]


def _log(opened: Access, job: Job) -> None:
    """Ids, stages and times; the workers write no prompt text."""
    queue = opened.queue
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
            more = [
                str(line[name]) for name in ("stage", "attempt", "kind", "seconds", "log_id") if name in line
            ]
            shown.append(" ".join([at, str(line["event"]), *more]))
        st.code("\n".join(shown), language=None)
