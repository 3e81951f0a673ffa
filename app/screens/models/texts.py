"""What a calibration is made of: uploaded texts, and the settings of its folds."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import streamlit as st

from routesparse.app.shell.session_memory import remembered
from routesparse.app.ui import numbers
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.calibration.artifact import known
from routesparse.engine.calibration.folders import LEAST_TOKENS, check_not_bundled, own_folder
from routesparse.engine.errors import InputError
from routesparse.engine.jobs.documents import LEAST_DOCUMENTS, pack
from routesparse.engine.jobs.kinds import CALIBRATED, CalibrateRequest
from routesparse.engine.models.token_count import holds
from routesparse.engine.prompts.jsonl import IN_WORDS, jsonl_prompts
from routesparse.engine.prompts.text import PromptText, clean_label, decode_prompt

_LEAST, _MOST = 4_096, 8_192


# The uploaded documents, and what is wrong with the files.
Found = tuple[list[PromptText], list[str]]


def choose() -> Found:
    """Draw the upload; documents in the order of the files and lines."""
    files = st.file_uploader(
        "Texts",
        key="texts",
        accept_multiple_files=True,
        help=f"Several text files in UTF-8, or .jsonl files with one document a line under {IN_WORDS}",
    )
    key = tuple(part for file in files for part in (file.name, file.getvalue()))
    return remembered(
        "calibration-texts", key, lambda: _read([(file.name, file.getvalue()) for file in files])
    )


def _read(files: list[tuple[str, bytes]]) -> Found:
    documents: list[PromptText] = []
    wrong: list[str] = []
    for name, content in files:
        try:
            documents += _documents(clean_label(name), content, wrong)
        except InputError as error:
            wrong.append(str(error))
    if len(documents) >= LEAST_DOCUMENTS:
        try:
            pack(documents)
        except InputError as error:
            wrong.append(str(error))
    elif files:
        wrong.append(
            f"{numbers.several(len(documents), 'document')} found; the two folds need at least {LEAST_DOCUMENTS}, "
            "better 20 or more"
        )
    return documents, wrong


def _documents(label: str, content: bytes, wrong: list[str]) -> Iterator[PromptText]:
    text = decode_prompt(content, label)
    if not label.lower().endswith(".jsonl"):
        yield text
        return
    prompts, bad = jsonl_prompts(text.text)
    wrong += [f"{label}: {line}" for line in bad[:3]]
    for number, prompt in enumerate(prompts, start=1):
        yield decode_prompt(prompt.encode(), f"{label} #{number}")


def settings(max_tokens: int) -> dict[str, Any]:
    """Draw the settings; fields of a CalibrateRequest."""
    one, two, three = st.columns(3)
    with one:
        name = st.text_input(
            "Domain", key="domain-name", placeholder="such as contracts", help=TERMS["calibration"]
        )
        policy = st.selectbox("Policy", CALIBRATED, key="calibrated-policy", help=TERMS["policy"])
    with two:
        least = st.number_input(
            "Shortest prompt, tokens", LEAST_TOKENS, value=max(LEAST_TOKENS, min(_LEAST, max_tokens // 2))
        )
        most = st.number_input(
            "Longest prompt, tokens", LEAST_TOKENS, value=max(LEAST_TOKENS, min(_MOST, max_tokens))
        )
    with three:
        fold_a = st.number_input(
            "Prompts to fit on",
            1,
            value=24,
            help="Per length; lengths double from the shortest to the longest prompt",
        )
        fold_b = st.number_input(
            "Prompts to take δ from",
            1,
            value=60,
            help="Per length; a claim at q = .95 needs 19, at .99 it needs 99",
        )
    return {
        "name": name.strip(),
        "policy": policy,
        "least_tokens": int(least),
        "most_tokens": int(most),
        "fold_a": int(fold_a),
        "fold_b": int(fold_b),
    }


def problems(documents: list[PromptText], request: CalibrateRequest, max_tokens: int) -> Iterator[str]:
    """What is wrong with settings and texts together."""
    if request.most_tokens > max_tokens:
        yield f"Prompts of {request.most_tokens:,} tokens are longer than the model reads, {max_tokens:,}"
    if len(documents) < LEAST_DOCUMENTS:
        return
    key = (request.model, request.least_tokens, *(document.sha256 for document in documents))
    long = remembered("calibration-long", key, lambda: _long(documents, request))
    if long < LEAST_DOCUMENTS:
        yield (
            f"Only {long} of {len(documents)} documents hold {request.least_tokens:,} tokens; two must: upload "
            "longer ones, or make the shortest prompt shorter"
        )


def taken(request: CalibrateRequest, owner: str | None) -> Iterator[str]:
    """A name that another calibration has, unless it is to be replaced; a bundled one stays."""
    try:
        check_not_bundled(request.name)
    except InputError as error:
        yield str(error)
        return
    if request.name not in known(owner) or st.checkbox(f"Replace calibration {request.name}", key="replace"):
        return
    whose = "" if (own_folder(owner) / f"{request.name}.json").is_file() else " of this machine"
    yield f"A calibration{whose} is called {request.name!r} already; choose another domain, or replace it"


def _long(documents: list[PromptText], request: CalibrateRequest) -> int:
    return sum(holds(request.model, document.text, request.least_tokens) for document in documents)
