"""New run: choose a prompt and the router's settings, see what the job will take, and queue it."""

from __future__ import annotations

import math
from collections.abc import Collection
from dataclasses import replace
from html import escape
from typing import Any, Literal

import streamlit as st

from routesparse.app.screens.new_run import problems, prompt_input, quality, rope, unread, vary, what_it_takes
from routesparse.app.shell import identity, model_checks, navigate, switch
from routesparse.app.shell.access import Access, access
from routesparse.app.shell.jobs_view import worker_note
from routesparse.app.shell.session_memory import remembered
from routesparse.app.ui import facts, numbers, states
from routesparse.app.ui.glossary import TERMS
from routesparse.engine import paths
from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.config import AUDIT_DEPTHS, POLICIES, PROBE_MODES, RouterConfig
from routesparse.engine.errors import InputError, ModelError, PromptError, StoreError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import offered, resolve
from routesparse.engine.models.token_count import PromptSize, most_tokens, part_of, prompt_size, size_of
from routesparse.engine.profiles.files import stored_for


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
            model, requests, varied, found = _requests()
    with right, st.container(border=True, key="card-take", gap="small"):
        st.html('<div class="rs-h">What it will take</div>')
        chosen, size, wrong = _sized(chosen, model)
        found = [*wrong, *found, *_take(opened, chosen, requests, varied, size)]
        _submit(opened, chosen, requests, found)


def _requests() -> tuple[str, list[RunRequest], vary.Varied | None, list[problems.Problem]]:
    """The settings, which live in the address, so that a link repeats them: the model; one request, or with something
    varied one for each value; and all that is wrong with them."""
    wishes: dict[str, Any] = {}
    grid, switches, row = st.container(), st.container(), vary.row()
    with row:
        taken = vary.choose()  # first, because it takes the place of a field of the grid
    with grid:
        one, two, three = st.columns(3)
    with one:
        models = offered()
        absent = _absent(models)
        named = st.selectbox(
            "Model",
            list(models),
            key="with_model",
            bind="query-params",
            on_change=st.session_state.pop,
            args=("absent-model", None),
            help="The bundled model, and the folders under models in the folder that runs are stored in",
        )
        wishes["model"] = models[named]
        if absent is not None:
            states.note(f"Model {absent[:80]} is not in the models folder; {named} is chosen instead.")
        if not _prepared(models[named]):
            navigate.link("Prepare this model", "models", model=named)
        wishes["policy"] = st.selectbox(
            "Policy", _policies(), key="with_policy", bind="query-params", help=TERMS["policy"]
        )
        priced = wishes["policy"] == "priced"
        wishes["audit"] = st.selectbox(
            "Audit", AUDIT_DEPTHS, 1, key="audit", bind="query-params", help=TERMS["audit"]
        )
        wishes["probe"] = st.selectbox(
            "Probe", PROBE_MODES, key="probe_mode", bind="query-params", help=TERMS["probe"]
        )
    with two:
        calibration = st.selectbox(
            "Calibration",
            _calibrations(wishes["model"], rope.typed() is not None, "calibration"),
            key="calibration",
            bind="query-params",
            help=TERMS["calibration"],
            disabled=taken == "calibration",
        )
        limit = st.text_input(
            "Time limit Tℓ",
            key="limit",
            bind="query-params",
            placeholder="varied" if taken == "time limit" else "none",
            help=TERMS["time_limit"],
            disabled=taken == "time limit",
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
        wishes["rope"] = rope.field()
    with three:
        no_numbers = unread.remembered()
        target = quality.target(wishes["model"], taken == "price") if priced else None
        if not priced:
            quality.say_unused(wishes["policy"])
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
            if target is not None:
                st.session_state["price"] = None  # the target's stands in the greyed field
            wishes["price"] = st.number_input(
                "Price",
                value=None,
                step=0.05,
                format="%.3g",
                key="price",
                bind="query-params",
                placeholder="varied"
                if taken == "price"
                else f"{target.price if target else RouterConfig.price:g}",
                help=TERMS["price"],
                disabled=taken == "price" or target is not None,
            )
        wishes["segment"] = st.number_input(
            "Segment, tokens",
            value=None,
            step=128,
            key="segment",
            bind="query-params",
            placeholder="by the device",
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
        unread.tell(no_numbers, wishes, priced and target is None)
    with switches, st.container(horizontal=True, gap="large", vertical_alignment="center"):
        wishes["keep_text"] = st.toggle(
            "Keep the text",
            True,
            key="keep_text",
            bind="query-params",
            help="Off: the run holds the prompt's hash only, and its text is deleted with the job",
        )
        wishes["measure_dense"] = st.toggle(
            "Always run dense too",
            False,
            key="dense",
            bind="query-params",
            help="A second prefill with dense attention checks the next token and gives the speedup. It runs by itself "
            "where it is predicted to take less than half a minute; this runs it however long it takes",
        )
    if target is not None:
        wishes["price"], wishes["quality"] = target.price, target.name
        st.html(f'<div class="rs-note">{escape(target.name)}: {escape(target.says)}.</div>')
    wishes["calibration"] = None if calibration == problems.NO_CALIBRATION else calibration
    wishes["budget"] = limit.strip() or None
    if taken is not None:
        with row:
            varied = vary.values(
                taken, _calibrations(wishes["model"], wishes["rope"] is not None, vary.CALIBRATIONS)
            )
        requests, found = vary.requests(varied, wishes)
        if requests and target is not None and (text := problems.of_target(requests[0], target)):
            found = [*found, text]
        return wishes["model"], requests, varied, found
    found = problems.of_settings(wishes)
    if found:
        return wishes["model"], [], None, found
    request = RunRequest(**wishes)
    missed = None if target is None else problems.of_target(request, target)
    wrong = problems.of_calibration(request)
    told = [] if missed is None else [missed]
    if wrong is not None:
        request = replace(request, calibration=None)
        told.append(problems.Problem(wrong, (problems.UNCALIBRATED,)))
    return request.model, [request], None, told


def _absent(models: Collection[str]) -> str | None:
    """The model that the address asked for when the page was opened, where it is not offered: its field then takes the
    first one and clears the address."""
    if "with_model" not in st.session_state:
        wanted = st.query_params.get("with_model")
        st.session_state["absent-model"] = None if wanted in models else wanted
    return st.session_state.get("absent-model")


def _policies() -> list[str]:
    """The default first."""
    return sorted(POLICIES, key=lambda policy: policy != RouterConfig.policy)


def _calibrations(model: str, rescaled: bool, key: str) -> list[str]:
    """The bundled ones, and those made here that are for this model, or that may be where positions are rescaled.

    key: of the field, whose choice stays offered when a scaling is entered or cleared, so that the page says that it
    does not fit; a choice that is no longer offered would become none without a word.
    """
    bundled = [file.stem for file in (paths.DATA / "calibrations").glob("*.json")]
    chosen = st.session_state.get(key) or st.query_params.get_all(key)
    kept = {chosen} if isinstance(chosen, str) else set(chosen)
    others = kept.intersection(_made_for(model, not rescaled))
    return [problems.NO_CALIBRATION, *sorted({*bundled, *_made_for(model, rescaled), *others})]


def _made_for(model: str, rescaled: bool = False) -> list[str]:
    """The calibrations of this model's weights; none where its files are broken, which the page says elsewhere."""
    try:
        found = model_checks.calibrations_for(resolve(model)[0], identity.owner(), rescaled)
        return [one.name for one in found]
    except ModelError:
        return []


def _prepared(model: str) -> bool:
    """Whether calibrations for this model and a latency profile for its heads are there."""
    try:
        heads = size_of(model, 1).head_dim
    except ModelError:
        return False
    return bool(_made_for(model)) and bool(stored_for(heads, RouterConfig()))


def _part(chosen: prompt_input.Chosen | None, model: str) -> prompt_input.Chosen | None:
    """The tokens of the prompt that the address asks for. Errors: ModelError."""
    taken = switch.chosen("take", prompt_input.TAKE)
    if chosen is None or taken == "all":
        return chosen
    side: Literal["first", "last"] = "first" if taken == "first" else "last"
    tokens = int(st.session_state.get("take_tokens") or prompt_input.TAKE_TOKENS)
    text = remembered(
        "part",
        (model, chosen.content, tokens, side),
        lambda: part_of(model, chosen.prompt.text, tokens, side),
    )
    name = (
        f"{chosen.prompt.name}, {side} {tokens:,} tokens"
        if text != chosen.prompt.text
        else chosen.prompt.name
    )
    return prompt_input.Chosen(text.encode(), replace(chosen.prompt, text=text, name=name))


def _sized(
    chosen: prompt_input.Chosen | None, model: str
) -> tuple[prompt_input.Chosen | None, PromptSize | None, list[problems.Problem]]:
    """The part of the prompt that is used, its size for the model, and what is wrong with either."""
    if chosen is None:
        return None, None, [problems.Problem("No usable prompt yet: choose one on the left.")]
    scaling = problems.scaling(model, rope.typed())
    try:
        part = _part(chosen, model)
        assert part is not None
        size = remembered(
            "size", (model, scaling, part.content), lambda: prompt_size(model, part.prompt.text, scaling)
        )
    except PromptError as error:
        return chosen, None, [problems.Problem(str(error), problems.take_fixes(most_tokens(model, scaling)))]
    except ModelError as error:
        return chosen, None, [problems.Problem(str(error))]
    return part, size, list(problems.of_length(size))


def _take(
    opened: Access,
    chosen: prompt_input.Chosen | None,
    requests: list[RunRequest],
    varied: vary.Varied | None,
    size: PromptSize | None,
) -> list[problems.Problem]:
    """Tokens, time, memory and the least time limit, before anything runs; what would make the job fail later."""
    if chosen is None or size is None:
        st.html('<div class="rs-sub">Choose a prompt to see its tokens, time and memory.</div>')
        return []
    facts_shown: list[tuple[str, ...]] = [
        ("tokens", numbers.count(size.tokens)),
        ("the model reads up to", numbers.count(size.max_tokens)),
        ("text", numbers.size(len(chosen.content))),
        ("memory on a CPU, about", numbers.size(size.memory_bytes + size.cache_bytes)),
    ]
    note = (
        f"Memory: runtime, weights and one layer in float32, and {numbers.size(size.cache_bytes)} of keys and values "
        "to continue the prompt, by the run and then by dense; there is no continuation where they would take more "
        "than a quarter of the free memory."
    )
    seen = None
    if requests and size.tokens <= size.max_tokens:
        # What is varied changes neither the break-even nor the least limit.
        seen = what_it_takes.outlook(requests[0], size)
        took, source = what_it_takes.time(
            opened, requests, len(chosen.content), size.tokens, seen.routes(size.tokens)
        )
        note = f"{source} {note}"
        several = f", {len(requests)} settings" if varied else ""
        facts_shown.insert(3, (f"estimated time{several}", took))
        if seen.least and seen.routes(size.tokens):
            own = seen.least[0]
            least = f"{numbers.share(own.share)} of dense, {numbers.micros(own.limit_us)}"
            facts_shown.append(("least Tℓ, above", least, "time_limit"))
    st.html(facts.lines_html(facts_shown) + f'<div class="rs-note">{escape(note)}</div>')
    return [] if seen is None else _ahead(requests, varied, size, seen)


def _ahead(
    requests: list[RunRequest], varied: vary.Varied | None, size: PromptSize, seen: what_it_takes.Outlook
) -> list[problems.Problem]:
    """What doesn't match this prompt, model or machine."""
    found: list[problems.Problem] = []
    if seen.routes(size.tokens):
        for budget in dict.fromkeys(request.budget for request in requests):
            instead = (varied.leave_out(budget),) if varied and varied.field == "budget" else ()
            found += problems.of_limit(replace(requests[0], budget=budget), seen.least, instead)
    else:
        source = f"break-even, {seen.break_even:,} tokens as set"
        if seen.device is not None:
            device = numbers.device(seen.device)
            source = f"the predicted break-even, {seen.break_even:,} tokens by the profile of {device}"
        anyway = problems.Fix("Route it anyway", {"break_even": 0})
        text = f"Below {source}: dense attention will run untouched."
        found.append(problems.Problem(text, (anyway,), blocks=False))
    if requests[0].policy == "priced" and not (varied and varied.field == "price"):
        found += quality.of_length(requests[0].model, size.tokens)
    for name in dict.fromkeys(request.calibration for request in requests):
        if name is None or _calibrated(replace(requests[0], calibration=name), size):
            continue
        left = varied is not None and varied.field == "calibration"
        without = varied.leave_out(name) if varied and left else problems.UNCALIBRATED
        text = (
            f"Calibration {name} has no δ for {size.tokens:,} tokens: only the in-prompt certificate "
            "and the row statement will be given."
        )
        found.append(problems.Problem(text, (without,), blocks=False))
    if not seen.profiled:
        text = (
            f"No latency profile for heads of size {size.head_dim} with probe {requests[0].probe} is stored: the job "
            "measures this machine first."
        )
        found.append(problems.Problem(text, blocks=False))
    if seen.problem is not None:
        found.append(problems.Problem(seen.problem, blocks=False))
    return found


def _calibrated(request: RunRequest, size: PromptSize) -> bool:
    delta = load_calibration(str(request.calibration), identity.owner()).delta(
        size.tokens, request.config().confidence
    )
    return math.isfinite(delta)


def _submit(
    opened: Access,
    chosen: prompt_input.Chosen | None,
    requests: list[RunRequest],
    found: list[problems.Problem],
) -> None:
    """Every problem at once, and the button, which works once none blocks: it queues all requests or none."""
    worker_note(opened.queue)
    problems.show(found)
    ready = chosen is not None and requests and not any(problem.blocks for problem in found)
    label = f"Analyse with {len(requests)} settings" if len(requests) > 1 else "Analyse"
    pressed = st.button(label, type="primary", key="submit", disabled=not ready, width="stretch")
    if not (pressed and chosen and requests):
        return
    named = [replace(request, label=chosen.prompt.name) for request in requests]
    try:
        if len(named) > 1:
            sweep_id = opened.queue.submit_sweep(named, chosen.content)
        else:
            job_id = opened.queue.submit(named[0], chosen.content)
    except (InputError, StoreError) as error:
        states.field_error(f"{error}. Nothing was queued; what you entered is still here.")
        return
    if len(named) > 1:
        navigate.go("compare", sweep=sweep_id)
    else:
        navigate.go("runs", job=job_id)
