"""New run: choose a prompt and the router's settings, see what the job will take, and queue it."""

from __future__ import annotations

import math
from dataclasses import replace
from html import escape
from typing import Literal

import streamlit as st

from routesparse.app.screens.new_run import problems, prompt_input, settings, what_it_takes
from routesparse.app.screens.new_run.problems import Fix, Problem
from routesparse.app.screens.new_run.settings import Settings
from routesparse.app.shell import identity, navigate, switch
from routesparse.app.shell.access import Access, access
from routesparse.app.shell.jobs_view import worker_note
from routesparse.app.shell.session_memory import remembered
from routesparse.app.ui import elements, numbers, states
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.errors import InputError, ModelError, PromptError, StoreError
from routesparse.engine.models.token_count import PromptSize, most_tokens, part_of, prompt_size
from routesparse.engine.prompts.text import PromptText


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
            asked = settings.form()
    with right, st.container(border=True, key="card-take", gap="small"):
        st.html('<div class="rs-h">What it will take</div>')
        prompt, size, wrong = _sized(chosen, asked)
        found = [*wrong, *asked.problems]
        if prompt is None or size is None:
            elements.sub("Choose a prompt to see its tokens, time and memory.")
        else:
            found += _take(opened, prompt, asked, size)
        _submit(opened, prompt, asked, found)


def _sized(
    chosen: PromptText | None, asked: Settings
) -> tuple[PromptText | None, PromptSize | None, list[Problem]]:
    """The part of the prompt that is used, its size for the model, and what is wrong with either."""
    if chosen is None:
        return None, None, [Problem("No usable prompt yet: choose one under Prompt.")]
    model, scaling = asked.model, problems.scaling(asked.model, asked.rope)
    try:
        part = _part(chosen, model)
        size = remembered("size", (model, scaling, part.text), lambda: prompt_size(model, part.text, scaling))
    except PromptError as error:
        return chosen, None, [Problem(str(error), problems.take_fixes(most_tokens(model, scaling)))]
    except ModelError as error:
        return chosen, None, [Problem(str(error))]
    if size.tokens <= size.max_tokens:
        return part, size, []
    text = (
        f"The prompt has {size.tokens:,} tokens, the model reads at most {size.max_tokens:,}; shorten it by "
        f"{size.tokens - size.max_tokens:,}."
    )
    return part, size, [Problem(text, problems.take_fixes(size.max_tokens))]


def _part(chosen: PromptText, model: str) -> PromptText:
    """The tokens of the prompt that the address asks for. Errors: ModelError."""
    taken = switch.chosen("take", prompt_input.TAKE)
    if taken == "all":
        return chosen
    side: Literal["first", "last"] = "first" if taken == "first" else "last"
    tokens = int(st.session_state.get("take_tokens") or prompt_input.TAKE_TOKENS)
    key = (model, chosen.text, tokens, side)
    text = remembered("part", key, lambda: part_of(model, chosen.text, tokens, side))
    if text == chosen.text:
        return chosen
    return replace(chosen, text=text, name=f"{chosen.name}, {side} {tokens:,} tokens")


def _take(opened: Access, prompt: PromptText, asked: Settings, size: PromptSize) -> list[Problem]:
    """Tokens, time, memory and the least time limit, before anything runs; what would make the job fail later."""
    prompt_bytes = len(prompt.text.encode())
    shown: list[tuple[str, ...]] = [
        ("tokens", numbers.count(size.tokens)),
        ("the model reads up to", numbers.count(size.max_tokens)),
        ("text", numbers.size(prompt_bytes)),
        ("memory on a CPU, about", numbers.size(size.memory_bytes + size.cache_bytes)),
    ]
    note = (
        f"Memory: runtime, weights and one layer in float32, and {numbers.size(size.cache_bytes)} of keys and values "
        "to continue the prompt, by the run and then by dense; there is no continuation where they would take more "
        "than a quarter of the free memory."
    )
    seen = None
    if asked.requests and size.tokens <= size.max_tokens:
        # What is varied changes neither the break-even nor the least limit.
        seen = what_it_takes.outlook(asked.requests[0], size)
        routed = seen.routes(size.tokens)
        took, source = what_it_takes.time(opened, asked.requests, prompt_bytes, size.tokens, routed)
        note = f"{source} {note}"
        several = f", {len(asked.requests)} settings" if asked.varied else ""
        shown.insert(3, (f"estimated time{several}", took))
        if seen.least and routed:
            own = seen.least[0]
            least = f"{numbers.share(own.share)} of dense, {numbers.micros(own.limit_us)}"
            shown.append(("least Tℓ, above", least, "time_limit"))
    st.html(elements.lines_html(shown) + f'<div class="rs-note">{escape(note)}</div>')
    return [] if seen is None else _ahead(asked, size, seen)


def _ahead(asked: Settings, size: PromptSize, seen: what_it_takes.Outlook) -> list[Problem]:
    """What doesn't match this prompt, model or machine."""
    requests, varied, notes = asked.requests, asked.varied, []
    found: list[Problem] = []
    if seen.routes(size.tokens):
        for budget in dict.fromkeys(request.budget for request in requests):
            instead = (varied.leave_out(budget),) if varied and varied.field == "budget" else ()
            found += problems.of_limit(replace(requests[0], budget=budget), seen.least, instead)
    else:
        source = f"break-even, {seen.break_even:,} tokens as set"
        if seen.device is not None:
            device = numbers.device(seen.device)
            source = f"the predicted break-even, {seen.break_even:,} tokens by the profile of {device}"
        text = f"Below {source}: dense attention will run untouched."
        found.append(Problem(text, (Fix("Route it anyway", {"break_even": 0}),), blocks=False))
    if asked.target is not None and (beyond := asked.target.beyond(size.tokens)):
        notes.append(f"{beyond}: the target says nothing of it.")
    if (name := requests[0].calibration) is not None:
        delta = load_calibration(name, identity.owner()).delta(size.tokens, requests[0].config().confidence)
        if not math.isfinite(delta):
            text = (
                f"Calibration {name} has no δ for {size.tokens:,} tokens: only the in-prompt certificate "
                "and the row statement will be given."
            )
            found.append(Problem(text, (problems.UNCALIBRATED,), blocks=False))
    if not seen.profiled:
        notes.append(
            f"No latency profile for heads of size {size.head_dim} with probe {requests[0].probe} is stored: the job "
            "measures this machine first."
        )
    if seen.problem is not None:
        notes.append(seen.problem)
    return [*found, *(Problem(text, blocks=False) for text in notes)]


def _submit(opened: Access, prompt: PromptText | None, asked: Settings, found: list[Problem]) -> None:
    """Every problem at once, and the button, which works once none blocks: it queues all requests or none."""
    worker_note(opened.queue)
    problems.show(found)
    count = len(asked.requests)
    ready = prompt is not None and count and not any(problem.blocks for problem in found)
    label = f"Analyse with {count} settings" if count > 1 else "Analyse"
    pressed = st.button(label, type="primary", key="submit", disabled=not ready, width="stretch")
    if not (pressed and prompt and count):
        return
    named = [replace(request, label=prompt.name) for request in asked.requests]
    try:
        if count > 1:
            where = {"sweep": opened.queue.submit_sweep(named, prompt.text.encode())}
        else:
            where = {"job": opened.queue.submit(named[0], prompt.text.encode())}
    except (InputError, StoreError) as error:
        states.field_error(f"{error}. Nothing was queued; what you entered is still here.")
        return
    navigate.go("compare" if count > 1 else "runs", **where)
