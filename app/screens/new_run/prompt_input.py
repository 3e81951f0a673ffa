"""Where a new run's prompts come from: uploads, pasted text, a bundled sample, or a stored run's kept text.

A prompt is shown as code only, never as Markdown or HTML; a file's name is a label and never a path.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from html import escape

import streamlit as st

from routesparse.app.shell import switch
from routesparse.app.shell.access import access
from routesparse.app.shell.session_memory import remembered
from routesparse.app.ui import browser_part, elements, numbers, states
from routesparse.engine import paths
from routesparse.engine.errors import InputError, PromptError
from routesparse.engine.export.plain_text import visible
from routesparse.engine.models.files import offered
from routesparse.engine.models.token_count import chat
from routesparse.engine.prompts.jsonl import IN_WORDS, read_rows
from routesparse.engine.prompts.text import TEXT_SUFFIXES, PromptText, clean_label, decode_prompt
from routesparse.engine.store import queries, word_queries

TAKE = {"all": "All of it", "first": "The first tokens", "last": "The last tokens"}
TAKE_TOKENS = 4_096
_hand_over = browser_part.component(__file__, "paste", "<span></span>")
MOST_PROMPTS = 50  # a batch; each is tokenized before it is queued
_SHOWN_CHARACTERS = 1_500


def choose() -> list[PromptText]:
    """Draw the choice; empty while there is nothing to submit, or it is wrong (the page then says why)."""
    sources: dict[str, Callable[[], list[tuple[bytes, str]]]] = {
        "Upload": _upload,
        "Folder": functools.partial(_upload, folder=True),
        "Paste": _paste,
        "Sample": _sample,
    }
    if "from" in st.query_params:
        sources = {"Stored run": _stored, **sources}
    if "from_job" in st.query_params:
        sources = {"Job": _of_job, **sources}
    source = st.segmented_control(
        "Where the prompt comes from",
        list(sources),
        key="source",
        bind="query-params",
        default=next(iter(sources)),
        required=True,
        label_visibility="collapsed",
    )
    try:
        found = sources[str(source)]()
        if not found:
            return []
        if len(found) > MOST_PROMPTS:
            raise PromptError(
                f"{len(found):,} prompts are more than {MOST_PROMPTS} at a time; leave some out"
            )
        made = (part for pair in found for part in pair)
        prompts: list[PromptText] = remembered(
            "prompts", (*made,), lambda: [decode_prompt(*one) for one in found]
        )
    except InputError as error:
        states.field_error(str(error))
        return []
    if source != "Paste":
        if len(prompts) > 1:
            elements.sub(f"{len(prompts)} prompts, a run each. The first, {visible(prompts[0].name)}:")
        _preview(prompts[0].text)
    _take()
    return prompts


def _take() -> None:
    """Whether to use all of the prompt; page.py cuts it, because tokens are the chosen model's."""
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        taken = switch.chosen("take", TAKE)
        switch.buttons("take", TAKE, taken)
        if taken != "all":
            st.number_input(
                "Tokens",
                2,
                value=None,
                step=1_024,
                key="take_tokens",
                bind="query-params",
                placeholder=f"{TAKE_TOKENS:,}",
                label_visibility="collapsed",
                width=150,
            )


def _upload(folder: bool = False) -> list[tuple[bytes, str]]:
    uploaded = st.file_uploader(
        "Folder of text files" if folder else "Text files",
        key="folder" if folder else "upload",
        accept_multiple_files="directory" if folder else True,
        type=[*TEXT_SUFFIXES, ".jsonl"] if folder else None,
        help="Text in UTF-8, a run a file. A .jsonl file has one object a line, its prompt under "
        f"{IN_WORDS}; you pick a line, or all.",
    )
    found = []
    for file in sorted(uploaded, key=lambda file: file.name):
        content, label = file.getvalue(), clean_label(file.name)
        is_rows = label.lower().endswith(".jsonl")
        found += _rows(content, label, len(uploaded) == 1) if is_rows else [(content, label)]
    return found


def _rows(content: bytes, label: str, alone: bool) -> list[tuple[bytes, str]]:
    """The prompts of a .jsonl file; alone: of which one may be chosen."""
    rows, wrong = remembered(
        f"jsonl {label}", (content,), lambda: read_rows(decode_prompt(content, label).text)
    )
    if wrong:
        more = f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        states.note(f"{numbers.several(len(wrong), 'line')} left out: {wrong[0]}{more}")
    chosen = list(enumerate(rows, 1))
    if len(rows) > 1 and alone:
        with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
            every = st.toggle(f"All {len(rows):,}, a run each", key="every_line")
            line = st.number_input(
                f"Prompt, 1 to {len(rows):,}", 1, len(rows), key="line", width=180, disabled=every
            )
        chosen = chosen if every else [chosen[int(line) - 1]]
    if chosen[0][1].told:
        states.note(f"{chosen[0][1].told[:1].upper()}{chosen[0][1].told[1:]}.")
    models = offered()
    model = models.get(str(st.session_state.get("with_model"))) or next(iter(models.values()))
    made: list[tuple[bytes, str]] = remembered(
        f"prompts {label}",
        (model, content, [line for line, _ in chosen]),
        lambda: [
            (row.prompt(functools.partial(chat, model)).encode(), f"{label} #{line}") for line, row in chosen
        ],
    )
    return made


def _paste() -> list[tuple[bytes, str]]:
    text = st.text_area(
        "Text", key="pasted", height=220, placeholder="Paste the prompt here", label_visibility="collapsed"
    )
    _hand_over(key="paste", height=1)
    name = st.text_input("Name of the prompt (a label)", "pasted text", key="label", width=280)
    return [(text.encode(), clean_label(name))] if text else []


def _sample() -> list[tuple[bytes, str]]:
    files = sorted((paths.DATA / "samples" / "prompts").glob("*.txt"))
    if not files:
        elements.sub("No sample prompts are installed in data/samples/prompts.")
        return []
    names = {file.name: file for file in files}
    name = st.selectbox("Sample", list(names), key="sample", bind="query-params", width=280)
    return [(names[name].read_bytes(), name)]


def _stored() -> list[tuple[bytes, str]]:
    store = access().store
    run_id = queries.resolve(store, st.query_params["from"])
    run, kept = queries.run(store, run_id), word_queries.words(store, run_id)
    if run is None or kept is None:
        elements.sub(
            "The text of that run was not kept, only its hash. Its settings are filled in "
            "below; choose the prompt again."
        )
        return []
    return [(kept.text.encode(), clean_label(run.prompt_name))]


def _of_job() -> list[tuple[bytes, str]]:
    """The prompt that a job was submitted with, as long as the job keeps it."""
    queue = access().queue
    job = queue.job(st.query_params["from_job"])
    if job is None:
        states.field_error("That job is not known here any more; choose the prompt again.")
        return []
    try:
        return [(queue.prompts.read(job.id), clean_label(job.label))]
    except PromptError:
        elements.sub(
            "The text of that job was not kept. Its settings are filled in below; choose the prompt again."
        )
        return []


def _preview(text: str) -> None:
    more = len(text) - _SHOWN_CHARACTERS
    shown = escape(visible(text[:_SHOWN_CHARACTERS], "\n"))
    st.html(f'<pre class="rs-block" tabindex="0" role="region" aria-label="The prompt">{shown}</pre>')
    if more > 0:
        elements.note(f"The beginning; {more:,} more characters follow.")
