"""What a fit or a calibration is made of: uploaded texts, and its settings."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import streamlit as st

from routesparse.app.shell.session_memory import remembered
from routesparse.app.ui import elements, numbers
from routesparse.app.ui.glossary import TERMS
from routesparse.engine.calibration.artifact import known
from routesparse.engine.calibration.choose import LEAST_CLUSTERS
from routesparse.engine.calibration.fitted import LEAST_TOKENS as LEAST_WINDOW
from routesparse.engine.calibration.fitted import Fitted
from routesparse.engine.calibration.folders import LEAST_TOKENS, check_not_bundled, own_folder
from routesparse.engine.errors import InputError
from routesparse.engine.jobs.documents import LEAST_DOCUMENTS, pack
from routesparse.engine.jobs.kinds import CALIBRATED, CalibrateRequest, FitRequest, OfTexts
from routesparse.engine.models.token_count import holds
from routesparse.engine.prompts.jsonl import IN_WORDS, jsonl_prompts
from routesparse.engine.prompts.text import PromptText, clean_label, decode_prompt

_LEAST, _MOST = 4_096, 8_192


# The uploaded documents, and what is wrong with the files.
Found = tuple[list[PromptText], list[str]]
_KINDS: dict[str, type[OfTexts]] = {"Fit: loss": FitRequest, "Calibrate: kept mass": CalibrateRequest}


def kind() -> type[OfTexts]:
    """Draw the switch between the two."""
    told = st.segmented_control("Measured", list(_KINDS), key="made", default="Fit: loss", required=True)
    return _KINDS[told]


def choose() -> Found:
    """Draw the upload; documents in the order of the files and lines."""
    files = st.file_uploader(
        "Texts",
        key="texts",
        accept_multiple_files=True,
        help=f"Several text files in UTF-8, or .jsonl files with one document a line under {IN_WORDS}; the job's end "
        "deletes them",
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
            f"{numbers.several(len(documents), 'document')} found; at least {LEAST_DOCUMENTS} are needed, "
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


def fit_settings(max_tokens: int, fit: Fitted | None) -> dict[str, Any]:
    """Draw the settings; fields of a FitRequest. fit: that the domain is added to, whose tokens and prices it takes."""
    one, two, three = st.columns(3)
    name = one.text_input("Domain", key="domain-name", placeholder="such as contracts").strip()
    windows = two.number_input("Windows, at least", LEAST_CLUSTERS, value=24, help="19 texts for a bound")
    most = max(LEAST_WINDOW, min(_MOST, max_tokens)) if fit is None else fit.tokens
    tokens = three.number_input("Tokens a window", LEAST_WINDOW, value=most, disabled=fit is not None)
    if fit is not None:
        prices = ", ".join(f"{one:g}" for one in fit.prices)
        instead = f", in place of its {name}" * (name in fit.domains)
        elements.note(f"Added to the fit on {', '.join(fit.domains)}{instead}, at its prices: {prices}.")
    return {"name": name, "windows": windows, "tokens": tokens if fit is None else fit.tokens}


def settings(max_tokens: int) -> dict[str, Any]:
    """Draw the settings; fields of a CalibrateRequest."""
    one, two, three = st.columns(3)
    with one:
        name = st.text_input("Domain", key="domain-name", placeholder="such as contracts").strip()
        policy = st.selectbox("Policy", CALIBRATED, key="calibrated-policy", help=TERMS["policy"])
    with two:
        least = st.number_input(
            "Shortest prompt, tokens", LEAST_TOKENS, value=max(LEAST_TOKENS, min(_LEAST, max_tokens // 2))
        )
        most = st.number_input(
            "Longest prompt, tokens", LEAST_TOKENS, value=max(LEAST_TOKENS, min(_MOST, max_tokens))
        )
    with three:
        fold_a = st.number_input("Prompts to fit on", 1, value=24, help="Per length; lengths double")
        needs = "Per length; q = .95 needs 19, .99 needs 99"
        fold_b = st.number_input("Prompts to take δ from", 1, value=60, help=needs)
    found = {"name": name, "policy": policy, "least_tokens": least, "most_tokens": most}
    return {**found, "fold_a": fold_a, "fold_b": fold_b}


def problems(documents: list[PromptText], request: OfTexts, max_tokens: int) -> Iterator[str]:
    """What is wrong with settings and texts together."""
    least, most = _lengths(request)
    if most > max_tokens:
        yield f"Prompts of {most:,} tokens are longer than the model reads, {max_tokens:,}"
    if len(documents) < LEAST_DOCUMENTS:
        return
    if (long := _long(documents, request)) < LEAST_DOCUMENTS:
        told = f"Only {long} of {len(documents)} documents hold {least:,} tokens; two must"
        yield f"{told}: upload longer ones, or ask for shorter prompts"


def windows(documents: list[PromptText], request: FitRequest) -> int:
    """As many of each document that is long enough, together at least what is asked for."""
    each = max(1, _long(documents, request))
    return -(-request.windows // each) * each


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


def _lengths(request: OfTexts) -> tuple[int, int]:
    """The least tokens that a document must hold, and the most of a prompt."""
    if isinstance(request, FitRequest):
        return request.tokens // 2, request.tokens
    return request.least_tokens, request.most_tokens


def _long(documents: list[PromptText], request: OfTexts) -> int:
    """How many documents are long enough."""
    model, least = request.model, _lengths(request)[0]
    key = (model, least, *(document.sha256 for document in documents))
    return int(remembered("long-texts", key, lambda: sum(holds(model, one.text, least) for one in documents)))
