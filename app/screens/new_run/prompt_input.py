"""Where a new run's prompt comes from: an upload, pasted text, a bundled sample, or a stored run's kept text.

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
from routesparse.app.ui import elements, numbers, states
from routesparse.engine import paths
from routesparse.engine.errors import InputError, PromptError
from routesparse.engine.export.plain_text import visible
from routesparse.engine.models.files import offered
from routesparse.engine.models.token_count import chat
from routesparse.engine.prompts.jsonl import IN_WORDS, read_rows
from routesparse.engine.prompts.text import PromptText, clean_label, decode_prompt
from routesparse.engine.store import queries, word_queries

TAKE = {"all": "All of it", "first": "The first tokens", "last": "The last tokens"}
TAKE_TOKENS = 4_096
_SHOWN_CHARACTERS = 1_500


def choose() -> PromptText | None:
    """Draw the choice; None while there is nothing to submit, or it is wrong (the page then says why)."""
    sources: dict[str, Callable[[], tuple[bytes, str] | None]] = {
        "Upload": _upload,
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
        if found is None:
            return None
        content, label = found
        prompt: PromptText = remembered("prompt", (content, label), lambda: decode_prompt(content, label))
    except InputError as error:
        states.field_error(str(error))
        return None
    if source != "Paste":
        _preview(prompt.text)
    _take()
    return prompt


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


def _upload() -> tuple[bytes, str] | None:
    uploaded = st.file_uploader(
        "Text file",
        key="upload",
        help="Any text in UTF-8, source code and tables too. A .jsonl file: one object a line, its prompt under "
        f"{IN_WORDS}; you pick the line.",
    )
    if uploaded is None:
        return None
    content, label = uploaded.getvalue(), clean_label(uploaded.name)
    if not label.lower().endswith(".jsonl"):
        return content, label
    rows, wrong = remembered("jsonl", (content,), lambda: read_rows(decode_prompt(content, label).text))
    if wrong:
        more = f", and {len(wrong) - 1:,} more" if len(wrong) > 1 else ""
        states.note(f"{numbers.several(len(wrong), 'line')} left out: {wrong[0]}{more}")
    line = 1
    if len(rows) > 1:
        line = int(st.number_input(f"Prompt, 1 to {len(rows):,}", 1, len(rows), key="line", width=180))
    row = rows[line - 1]
    if row.told:
        states.note(f"{row.told[:1].upper()}{row.told[1:]}.")
    models = offered()
    model = models.get(str(st.session_state.get("with_model"))) or next(iter(models.values()))
    text = remembered(
        "jsonl-prompt", (model, content, line), lambda: row.prompt(functools.partial(chat, model))
    )
    return text.encode(), f"{label} #{line}"


def _paste() -> tuple[bytes, str] | None:
    text = st.text_area(
        "Text", key="pasted", height=220, placeholder="Paste the prompt here", label_visibility="collapsed"
    )
    name = st.text_input("Name of the prompt (a label)", "pasted text", key="label", width=280)
    return (text.encode(), clean_label(name)) if text else None


def _sample() -> tuple[bytes, str] | None:
    files = sorted((paths.DATA / "samples" / "prompts").glob("*.txt"))
    if not files:
        elements.sub("No sample prompts are installed in data/samples/prompts.")
        return None
    names = {file.name: file for file in files}
    name = st.selectbox("Sample", list(names), key="sample", bind="query-params", width=280)
    return names[name].read_bytes(), name


def _stored() -> tuple[bytes, str] | None:
    store = access().store
    run_id = queries.resolve(store, st.query_params["from"])
    run, kept = queries.run(store, run_id), word_queries.words(store, run_id)
    if run is None or kept is None:
        elements.sub(
            "The text of that run was not kept, only its hash. Its settings are filled in "
            "below; choose the prompt again."
        )
        return None
    return kept.text.encode(), clean_label(run.prompt_name)


def _of_job() -> tuple[bytes, str] | None:
    """The prompt that a job was submitted with, as long as the job keeps it."""
    queue = access().queue
    job = queue.job(st.query_params["from_job"])
    if job is None:
        states.field_error("That job is not known here any more; choose the prompt again.")
        return None
    try:
        return queue.prompts.read(job.id), clean_label(job.label)
    except PromptError:
        elements.sub(
            "The text of that job was not kept. Its settings are filled in below; choose the prompt again."
        )
        return None


def _preview(text: str) -> None:
    more = len(text) - _SHOWN_CHARACTERS
    shown = escape(visible(text[:_SHOWN_CHARACTERS], "\n"))
    st.html(f'<pre class="rs-block" tabindex="0" role="region" aria-label="The prompt">{shown}</pre>')
    if more > 0:
        elements.note(f"The beginning; {more:,} more characters follow.")
