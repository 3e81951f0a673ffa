"""New run: choose a prompt and the router's settings, see what the job will take, and queue it."""

from __future__ import annotations

import math
from functools import cache
from html import escape
from pathlib import Path
from typing import Any

import streamlit as st

from routesparse.app.screens.new_run import prompt_input
from routesparse.app.shell import navigate
from routesparse.app.shell.access import Access, access
from routesparse.app.shell.jobs_view import worker_note
from routesparse.app.shell.session_memory import remembered
from routesparse.app.ui import facts, numbers, states
from routesparse.app.ui.glossary import TERMS
from routesparse.engine import paths
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.config import AUDIT_DEPTHS, POLICIES, PROBE_MODES, RouterConfig
from routesparse.engine.errors import InputError, ModelError, PromptError, StoreError
from routesparse.engine.jobs.estimate import job_estimate, scaled
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.models.files import DEMO, offered, resolve, revision_of
from routesparse.engine.models.token_count import PromptSize, prompt_size
from routesparse.engine.profiles.files import stored_for
from routesparse.engine.store import queries

_NO_CALIBRATION = "none"


def render() -> None:
    """Draw the page."""
    opened = access()
    st.html(
        '<div class="rs-title">New run</div><div class="rs-sub">Analyse one prompt: which head takes which pattern, '
        "why, and what it saves.</div>"
    )
    left, right = st.columns([1.9, 1], gap="small")
    with left:
        with st.container(border=True, key="card-prompt-input", gap="small"):
            st.html('<div class="rs-h">Prompt</div>')
            chosen = prompt_input.choose()
        with st.container(border=True, key="card-settings", gap="small"):
            st.html('<div class="rs-h">Settings</div>')
            request = _request(chosen.prompt.name if chosen else "pasted text")
    with right, st.container(border=True, key="card-take", gap="small"):
        st.html('<div class="rs-h">What it will take</div>')
        size = _size(chosen, request)
        _take(opened, chosen, request, size)
        _submit(opened, chosen, request, size)


def _request(label: str) -> RunRequest | None:
    """The settings; they live in the address, so a link repeats them. None where they contradict each other."""
    wishes: dict[str, Any] = {"label": label}
    one, two, three = st.columns(3)
    with one:
        models = offered()
        named = st.selectbox(
            "Model",
            list(models),
            key="with_model",
            bind="query-params",
            help="The bundled model, and the folders under models in the folder that runs are stored in",
        )
        wishes["model"] = models[named]
        wishes["policy"] = st.selectbox(
            "Policy", _policies(), key="with_policy", bind="query-params", help=TERMS["policy"]
        )
        priced = wishes["policy"] == "priced"
        wishes["audit"] = st.selectbox(
            "Audit", AUDIT_DEPTHS, 1, key="audit", bind="query-params", help=TERMS["audit"]
        )
    with two:
        calibration = st.selectbox(
            "Calibration", _calibrations(), key="calibration", bind="query-params", help=TERMS["calibration"]
        )
        limit = st.text_input(
            "Time limit Tℓ", key="limit", bind="query-params", placeholder="none", help=TERMS["time_limit"]
        )
        wishes["domain"] = (
            st.text_input(
                "Domain",
                key="in_domain",
                bind="query-params",
                placeholder="unknown",
                help="A label to filter runs by",
            ).strip()
            or None
        )
    with three:
        wishes["tau"] = st.number_input(
            "τ layer" if priced else "τ",
            value=None,
            step=0.01,
            format="%.2f",
            key="tau",
            bind="query-params",
            placeholder=f"{RouterConfig.tau_layer if priced else RouterConfig.tau:.2f}",
            help=TERMS["tau_layer" if priced else "tau"],
        )
        if priced:
            wishes["price"] = st.number_input(
                "Price",
                value=None,
                step=0.05,
                format="%.3g",
                key="price",
                bind="query-params",
                placeholder=f"{RouterConfig.price:g}",
                help=TERMS["price"],
            )
        wishes["segment"] = st.number_input(
            "Segment, tokens",
            value=None,
            step=128,
            key="segment",
            bind="query-params",
            placeholder="16,384; on a GPU 131,072",
            help=TERMS["segment"],
        )
        wishes["break_even"] = st.number_input(
            "Break-even, tokens",
            value=None,
            step=128,
            key="break_even",
            bind="query-params",
            placeholder="predicted",
            help=TERMS["break_even"],
        )
    with st.container(horizontal=True, gap="large", vertical_alignment="center"):
        wishes["keep_text"] = st.toggle(
            "Keep the text",
            True,
            key="keep_text",
            bind="query-params",
            help="Off: the run holds the prompt's hash only, and its text is deleted with the job",
        )
        wishes["measure_dense"] = st.toggle(
            "Time dense attention too",
            False,
            key="dense",
            bind="query-params",
            help="Runs a second prefill with dense attention, for the speedup",
        )
        wishes["probe"] = st.selectbox(
            "Probe", PROBE_MODES, key="probe_mode", bind="query-params", width=130, help=TERMS["probe"]
        )
    wishes["calibration"] = None if calibration == _NO_CALIBRATION else calibration
    wishes["budget"] = limit.strip() or None
    try:
        request = RunRequest(**wishes)
        if request.calibration is not None:
            load_calibration(request.calibration).check(
                revision_of(resolve(request.model)[0]), request.config()
            )
    except InputError as error:
        states.field_error(str(error))
        return None
    return request


def _policies() -> list[str]:
    """The default first."""
    return sorted(POLICIES, key=lambda policy: policy != RouterConfig.policy)


def _calibrations() -> list[str]:
    return [_NO_CALIBRATION, *sorted(file.stem for file in (paths.DATA / "calibrations").glob("*.json"))]


def _size(chosen: prompt_input.Chosen | None, request: RunRequest | None) -> PromptSize | None:
    if chosen is None:
        return None
    model = request.model if request else DEMO
    try:
        return remembered("size", (model, chosen.content), lambda: prompt_size(model, chosen.prompt.text))
    except (ModelError, PromptError) as error:
        states.field_error(str(error))
        return None


def _take(
    opened: Access, chosen: prompt_input.Chosen | None, request: RunRequest | None, size: PromptSize | None
) -> None:
    """Tokens, time and memory, before anything runs."""
    if chosen is None or size is None:
        st.html('<div class="rs-sub">Choose a prompt to see its tokens, time and memory.</div>')
        return
    time, source = _time(opened, chosen, request, size)
    st.html(
        facts.lines_html(
            [
                ("tokens", numbers.count(size.tokens)),
                ("the model reads up to", numbers.count(size.max_tokens)),
                ("text", numbers.size(len(chosen.content))),
                ("estimated time", time),
                ("memory on a CPU, about", numbers.size(size.memory_bytes)),
            ]
        )
    )
    st.html(f'<div class="rs-note">{escape(source)} Memory: runtime, weights and one layer in float32.</div>')
    if size.tokens > size.max_tokens:
        states.field_error(
            f"The prompt has {size.tokens:,} tokens, the model reads at most {size.max_tokens:,}; shorten it by "
            f"{size.tokens - size.max_tokens:,}."
        )
    elif request is not None:
        stored = stored_for(size.head_dim, request.config())
        warnings, below = _warnings(request, size, stored), None
        try:
            below = _below_break_even(request, size, stored)
        except InputError as error:
            warnings.append(str(error))
        for line in warnings:
            st.html(f'<div class="rs-note rs-warn">{escape(line)}</div>')
        if below is not None:
            st.html(f'<div class="rs-note">{escape(below)}</div>')
            st.button(
                "Route it anyway", key="route-anyway", help="Sets break-even to 0", on_click=_route_anyway
            )


def _route_anyway() -> None:
    st.session_state["break_even"] = 0


def _warnings(request: RunRequest, size: PromptSize, stored: list[Path]) -> list[str]:
    """What doesn't match this prompt, model or machine."""
    warnings = []
    if request.calibration is not None and not _calibrated(request, size):
        warnings.append(
            f"Calibration {request.calibration} has no δ for {size.tokens:,} tokens: only the in-prompt "
            "certificate and the row statement will be given."
        )
    if not stored:
        warnings.append(
            f"No latency profile for heads of size {size.head_dim} with probe {request.probe} is stored: the job "
            "measures this machine first."
        )
    return warnings


def _below_break_even(request: RunRequest, size: PromptSize, stored: list[Path]) -> str | None:
    """A line that dense attention will run untouched; None where routing will run, or break-even is not known.

    Errors: InputError for a profile that can't be read.
    """
    break_even, source = request.break_even, "break-even, {:,} tokens as set"
    if break_even is None:
        if not stored:
            return None
        break_even, device = _break_even(stored[0], stored[0].stat().st_mtime_ns, size.heads, size.layers)
        source = "the predicted break-even, {:,} tokens by the profile of " + numbers.device(device)
    if size.tokens >= break_even:
        return None
    return f"Below {source.format(break_even)}: dense attention will run untouched."


@cache
def _break_even(profile: Path, changed_ns: int, heads: int, layers: int) -> tuple[int, str]:
    """Tokens and device of a profile; ``changed_ns`` is part of the key."""
    loaded = LatencyProfile.load(profile)
    return loaded.break_even_tokens(heads, layers), loaded.device


def _calibrated(request: RunRequest, size: PromptSize) -> bool:
    delta = load_calibration(str(request.calibration)).delta(size.tokens, request.config().confidence)
    return math.isfinite(delta)


def _time(
    opened: Access, chosen: prompt_input.Chosen, request: RunRequest | None, size: PromptSize
) -> tuple[str, str]:
    """The estimate and where it comes from."""
    if request is not None:
        past = job_estimate(opened.queue, request, len(chosen.content))
        if past is not None:
            return numbers.span(
                past.low_s, past.high_s
            ), f"Time: from {numbers.several(past.jobs, 'earlier job')} like this."
        runs = queries.runs(opened.store, queries.RunFilter(models=(Path(request.model).name,)))
        pairs = [(int(n), ms / 1000) for n, ms in zip(runs["tokens"], runs["total_ms"], strict=True)]
        prefill = scaled(pairs, size.tokens)
        if prefill is not None:
            return (
                f"{numbers.span(prefill.low_s, prefill.high_s)} + loading",
                f"Time: prefill of {numbers.several(prefill.jobs, 'stored run')} with this model; loading "
                "and audit come on top.",
            )
    return "no estimate yet", "Time: the first job measures this machine."


def _submit(
    opened: Access, chosen: prompt_input.Chosen | None, request: RunRequest | None, size: PromptSize | None
) -> None:
    worker_note(opened.queue)
    ready = chosen is not None and request is not None and size is not None and size.tokens <= size.max_tokens
    pressed = st.button("Analyse", type="primary", key="submit", disabled=not ready, width="stretch")
    if not (pressed and chosen and request):
        return
    try:
        job_id = opened.queue.submit(request, chosen.content)
    except (InputError, StoreError) as error:
        states.field_error(f"{error}. Nothing was queued.")
        return
    navigate.go("job", job=job_id)
