"""Models: which can be analysed here, what the chosen one lacks, and jobs that make what is missing."""

from __future__ import annotations

from html import escape
from pathlib import Path

import streamlit as st

from routesparse.app.screens.models import profile, sources, texts, workers
from routesparse.app.shell import address, identity, jobs_view, model_checks, navigate
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import elements, numbers, states
from routesparse.engine.calibration import fitted
from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.jobs.documents import pack
from routesparse.engine.jobs.estimate import preparation_estimate
from routesparse.engine.jobs.kinds import CalibrateRequest, FitRequest, Preparation, ProfileRequest
from routesparse.engine.jobs.request import Request
from routesparse.engine.models.files import DEMO, folders, unpacked_of
from routesparse.engine.models.gguf import SUFFIX

_MARKS = {"ok": "✓", "missing": "○", "problem": "✗"}
_MEANING = {"ok": "there", "missing": "missing, not needed", "problem": "to fix"}


@address.names("named profile")
def render() -> None:
    """Draw the page."""
    opened = access()
    st.html(
        '<div class="rs-title">Models</div>'
        '<div class="rs-sub">Analyse with a model of your own: what it still lacks, and what that takes.</div>'
    )
    left, right = st.columns([1.7, 1], gap="small")
    alive = jobs_view.live_workers(opened.queue)
    with left:
        with st.container(border=True, key="card-model", gap="small"):
            name, folder = _chosen()
            model = DEMO if name == DEMO else str(folder)
            devices = [worker.device for worker in alive if worker.device is not None]
            with st.spinner("Reading its files", show_time=True):
                checked = model_checks.check(folder, model, identity.owner(), devices, workers.memory_bytes())
            _checklist(opened, name, model, checked)
        if checked.usable and checked.size is not None:
            with st.container(border=True, key="card-texts", gap="small"):
                _of_texts(opened, name, model, checked.fit, checked.size.max_tokens)
    with right:
        with st.container(border=True, key="card-workers", gap="small"):
            st.html('<div class="rs-h">Where jobs run</div>')
            jobs_view.worker_note(opened.queue)
            workers.card(alive)
        with st.container(border=True, key="card-add", gap="small"):
            sources.card()
    shown = st.expander(
        "Latency profiles", expanded="profile" in st.query_params, key="profiles", on_change="rerun"
    )
    if shown.open:
        with shown:
            profile.cards(opened.store)


def _chosen() -> tuple[str, Path]:
    there = folders()
    wanted = st.session_state.pop("added-model", None)
    if wanted in there:
        st.session_state["named"] = wanted
    name = st.selectbox("Model", list(there), key="named", bind="query-params", width=420)
    return name, unpacked_of(there[name])


def _checklist(opened: Access, name: str, model: str, checked: model_checks.Checked) -> None:
    for check in checked.checks:
        with st.container(
            horizontal=True,
            vertical_alignment="center",
            gap="small",
            key=f"check-{check.name.lower().replace(' ', '-')}",
        ):
            style = {"ok": "green", "missing": "", "problem": "red"}[check.state]
            st.html(
                f'<div><b><i class="rs-mark {style}" title="{_MEANING[check.state]}">{_MARKS[check.state]}</i> '
                f'{check.name}</b> <span class="rs-note">{escape(check.text)}</span></div>',
                width="stretch",
            )
    quick, full = ProfileRequest(model, quick=True), ProfileRequest(model)
    if not checked.usable or (checked.size is None and not model.endswith(SUFFIX)):
        states.field_error("A line marked ✗ must be fixed before this model can be analysed.")
        return
    if checked.size is None:
        if st.button("Unpack it and measure a quick profile", type="primary", key="unpack"):
            _submit(opened, quick, b"")
        st.html(
            '<div class="rs-note">A job of the worker: a minute or two, once. It can be analysed then.</div>'
        )
        return
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        if st.button("Analyse with this model", type="primary", key="analyse-with"):
            navigate.go("new", with_model=name)
        if st.button("Measure a quick profile", key="profile-quick"):
            _submit(opened, quick, b"")
        if st.button("Measure a full profile", key="profile-full"):
            _submit(opened, full, b"")
    seconds, minutes = _takes(opened, quick) or "seconds", _takes(opened, full) or "a minute or more on a CPU"
    elements.note(
        f"A profile is a job of the worker. Quick: {seconds}; full: {minutes}. It "
        "takes less than 0.1 MB and replaces an earlier one of the same device and head size."
    )
    if checked.fitting:
        navigate.link(
            "Show its calibrations", "domains", names=",".join(one.name for one in checked.fitting[:2])
        )


def _takes(opened: Access, request: Preparation) -> str | None:
    past = preparation_estimate(opened.queue, request)
    if past is None:
        return None
    span = numbers.span(past.low_s, past.high_s)
    return f"{span}, from {numbers.several(past.jobs, 'earlier job')} like this"


def _of_texts(opened: Access, named: str, model: str, fit: fitted.Fitted | None, most: int) -> None:
    """The form of a fit or a calibration; every problem is named at once, and the button works when there is none."""
    st.html('<div class="rs-h">Fit or calibrate on your texts</div>')
    owner = identity.owner()
    kind = texts.kind() if owner is None else CalibrateRequest
    if owner is not None:
        elements.note("A fit changes everybody’s default: the operator fits on the command line.")
    elif kind is FitRequest:
        jobs_view.to_fit("Several kinds in one call, such as on a GPU:", named, linked=False)
    documents, wrong = texts.choose()
    wishes = texts.fit_settings(most, fit) if kind is FitRequest else texts.settings(most)
    problems = [*wrong]
    request = None
    try:
        # Everything else is checked, and its cost told, before the domain has a name.
        request = kind(model=model, **{**wishes, "name": wishes["name"] or "unnamed"})
    except InputError as error:
        problems.append(str(error))
    if request is not None:
        problems += texts.problems(documents, request, most)
    if isinstance(request, CalibrateRequest):
        problems += texts.taken(request, owner)
    for problem in problems:
        states.field_error(f"{problem.rstrip('.')}.")
    if isinstance(request, FitRequest):
        windows = texts.windows(documents, request)
        prefills = windows * (1 + len(fitted.PRICES if fit is None else fit.prices))
        more = " and weighing the heads" * (fit is None)
        takes = _takes(opened, request) or f"{prefills:,} prefills{more}, hours on a CPU"
        elements.note(f"{windows:,} windows of {request.tokens:,} tokens: {takes}.")
    elif request is not None:
        takes = _takes(opened, request) or "each takes about as long as an audited analysis of its length"
        lengths = f"{request.least_tokens:,} to {request.most_tokens:,}"
        elements.note(f"{request.prompts:,} prompts of {lengths} tokens at most: {takes}.")
    if not (documents and wishes["name"]):
        missing = "Name the domain of these texts" if documents else "Upload texts and name their domain"
        elements.note(f"{missing} to begin.")
    ready = request is not None and not problems and documents and wishes["name"]
    label = "Fit" if kind is FitRequest else "Calibrate"
    pressed = st.button(label, key=label.lower(), type="primary", disabled=not ready)
    if pressed and ready and request is not None:
        _submit(opened, request, pack(documents))


def _submit(opened: Access, request: Request, content: bytes) -> None:
    try:
        job_id = opened.queue.submit(request, content)
    except (InputError, StoreError) as error:
        states.field_error(f"{error}. Nothing was queued; what you entered is still here.")
        return
    navigate.go("runs", job=job_id)
