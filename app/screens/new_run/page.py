"""New run: choose a prompt and the router's settings, see what the job will take, and queue it."""

from __future__ import annotations

import math
from dataclasses import replace
from html import escape
from typing import Literal

import streamlit as st

from routesparse.app.screens.new_run import problems, prompt_input, settings
from routesparse.app.screens.new_run.problems import Fix, Problem
from routesparse.app.screens.new_run.settings import Settings
from routesparse.app.shell import address, identity, navigate, switch, what_it_takes
from routesparse.app.shell.access import Access, access
from routesparse.app.shell.jobs_view import worker_note
from routesparse.app.shell.session_memory import remembered
from routesparse.app.ui import elements, numbers, states
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.config import check_trace, parse_trace
from routesparse.engine.errors import ConfigError, InputError, ModelError, PromptError, StoreError
from routesparse.engine.models.token_count import PromptSize, most_tokens, part_of, prompt_size
from routesparse.engine.prompts.text import PromptText


@address.names(
    "from from_job source take take_tokens sample with_model with_policy audit probe_mode limit "
    "in_domain rope calibration quality tau price segment break_even keep_text dense trace vary "
    "prices limits"
)
def render() -> None:
    """Draw the page."""
    opened = access()
    st.html(
        '<div class="rs-title">New run</div><div class="rs-sub">Which head takes which pattern of your prompt, why, '
        "what it saves and what it loses.</div>"
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
        prompts, sizes, wrong = _sized(chosen, asked)
        found = [*wrong, *asked.problems]
        if not sizes:
            elements.sub("Choose a prompt to see its tokens, time and memory.")
        else:
            found += _take(opened, prompts, asked, sizes)
        _submit(opened, prompts, asked, found)


def _sized(
    chosen: list[PromptText], asked: Settings
) -> tuple[list[PromptText], list[PromptSize], list[Problem]]:
    """The part of each prompt that is used, its size for the model, and what is wrong with either."""
    if not chosen:
        return [], [], [Problem("No usable prompt yet: choose one under Prompt.")]
    model, scaling = asked.model, problems.scaling(asked.model, asked.rope)
    try:
        parts = _parts(chosen, model)
        sizes: list[PromptSize] = remembered(
            "sizes",
            (model, scaling, *(part.text for part in parts)),
            lambda: [prompt_size(model, part.text, scaling) for part in parts],
        )
    except PromptError as error:
        return chosen, [], [Problem(str(error), problems.take_fixes(most_tokens(model, scaling)))]
    except ModelError as error:
        return chosen, [], [Problem(str(error))]
    size = max(sizes, key=lambda one: one.tokens)
    if size.tokens <= size.max_tokens:
        return parts, sizes, []
    text = (
        f"The {'longest ' if len(sizes) > 1 else ''}prompt has {size.tokens:,} tokens, the model reads at most "
        f"{size.max_tokens:,}; shorten it by {size.tokens - size.max_tokens:,}."
    )
    return parts, sizes, [Problem(text, problems.take_fixes(size.max_tokens))]


def _parts(chosen: list[PromptText], model: str) -> list[PromptText]:
    """The tokens of each prompt that the address asks for. Errors: ModelError."""
    taken = switch.chosen("take", prompt_input.TAKE)
    if taken == "all":
        return chosen
    side: Literal["first", "last"] = "first" if taken == "first" else "last"
    tokens = int(st.session_state.get("take_tokens") or prompt_input.TAKE_TOKENS)
    texts = remembered(
        "parts",
        (model, tokens, side, *(one.text for one in chosen)),
        lambda: [part_of(model, one.text, tokens, side) for one in chosen],
    )
    return [
        one if text == one.text else replace(one, text=text, name=f"{one.name}, {side} {tokens:,} tokens")
        for one, text in zip(chosen, texts, strict=True)
    ]


def _take(
    opened: Access, prompts: list[PromptText], asked: Settings, sizes: list[PromptSize]
) -> list[Problem]:
    """Tokens, time, memory and the least time limit, before anything runs; what would make a job fail later."""
    size = max(sizes, key=lambda one: one.tokens)
    prompt_bytes = [len(prompt.text.encode()) for prompt in prompts]
    shown: list[tuple[str, ...]] = [
        ("tokens", numbers.count(sum(one.tokens for one in sizes))),
        ("the model reads up to", numbers.count(size.max_tokens)),
        ("text", numbers.size(sum(prompt_bytes))),
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
        devices = what_it_takes.live_devices(opened)
        seen = what_it_takes.outlook(asked.requests[0], size, devices)
        routed = seen.routes(size.tokens)
        works = [(n, one.tokens, seen.routes(one.tokens)) for n, one in zip(prompt_bytes, sizes, strict=True)]
        took, source = what_it_takes.time(opened, asked.requests, works, devices)
        note = f"{source} {note}"
        several = f", {len(asked.requests)} settings" if asked.varied else ""
        several += f", {len(sizes)} prompts" if len(sizes) > 1 else ""
        shown.insert(3, (f"estimated time{several}", took))
        if seen.least and routed:
            own = seen.least[0]
            least = f"{numbers.share(own.share)} of dense, {numbers.micros(own.limit_us)}"
            shown.append(("least Tℓ, above", least, "time_limit"))
    st.html(elements.lines_html(shown) + f'<div class="rs-note">{escape(note)}</div>')
    return [] if seen is None else _ahead(asked, sizes, seen)


def _ahead(asked: Settings, sizes: list[PromptSize], seen: what_it_takes.Outlook) -> list[Problem]:
    """What doesn't match these prompts, the model or the machine."""
    requests, varied, notes = asked.requests, asked.varied, []
    size = max(sizes, key=lambda one: one.tokens)
    found: list[Problem] = []
    if varied and len(sizes) > 1:
        text = "A sweep varies a setting of one prompt; vary nothing, or choose one prompt."
        found.append(Problem(text, (Fix("Vary nothing", {"vary": "nothing"}),)))
    below = sum(not seen.routes(one.tokens) for one in sizes)
    if below < len(sizes):
        for budget in dict.fromkeys(request.budget for request in requests):
            instead = (varied.leave_out(budget),) if varied and varied.field == "budget" else ()
            found += problems.of_limit(replace(requests[0], budget=budget), seen.least, instead)
    if below:
        source = f"break-even, {seen.break_even:,} tokens as set"
        if seen.device is not None:
            device = numbers.device(seen.device)
            source = f"the predicted break-even, {seen.break_even:,} tokens by the profile of {device}"
        many = f"{below} of {len(sizes)} prompts are below" if len(sizes) > 1 else "Below"
        text = f"{many} {source}: dense attention will run untouched."
        found.append(Problem(text, (Fix("Route it anyway", {"break_even": 0}),), blocks=False))
    if any(seen.routes(one.tokens) and one.tokens < (seen.predicted or 0) for one in sizes):
        notes.append(
            f"Routing will be slower than dense here: the predicted break-even is {seen.predicted:,} tokens."
        )
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
    try:
        check_trace(parse_trace(requests[0].trace), min(one.tokens for one in sizes))
    except ConfigError as error:
        found.append(Problem(f"{problems.labelled(str(error))}.", (problems.UNTRACED,)))
    if not seen.profiled:
        notes.append(
            f"No latency profile for heads of size {size.head_dim} with probe {requests[0].probe} is stored: the job "
            "measures this machine first."
        )
    if seen.problem is not None:
        notes.append(seen.problem)
    return [*found, *(Problem(text, blocks=False) for text in notes)]


def _submit(opened: Access, prompts: list[PromptText], asked: Settings, found: list[Problem]) -> None:
    """Every problem at once, and the button, which works once none blocks: it queues a sweep's requests or none."""
    worker_note(opened.queue)
    problems.show(found)
    count = len(asked.requests)
    ready = prompts and count and not any(problem.blocks for problem in found)
    label = f"Analyse with {count} settings" if count > 1 else "Analyse"
    label += f" {len(prompts)} prompts" if len(prompts) > 1 else ""
    pressed = st.button(label, type="primary", key="submit", disabled=not ready, width="stretch")
    if not (pressed and prompts and count):
        return
    jobs: list[str] = []
    try:
        if count > 1:
            named = [replace(request, label=prompts[0].name) for request in asked.requests]
            navigate.go("compare", sweep=opened.queue.submit_sweep(named, prompts[0].text.encode()))
            return
        for prompt in prompts:
            request = replace(asked.requests[0], label=prompt.name)
            jobs.append(opened.queue.submit(request, prompt.text.encode()))
    except (InputError, StoreError) as error:
        done = f"{len(jobs)} of {len(prompts)} prompts were" if jobs else "Nothing was"
        states.field_error(f"{error}. {done} queued; what you entered is still here.")
        return
    navigate.go("runs", **({"job": jobs[0]} if len(jobs) == 1 else {}))
