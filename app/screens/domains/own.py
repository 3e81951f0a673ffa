"""Runs of a reader's own domains, and those that a comparison lacks: one job a text, queued and cancelled together."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from pathlib import PurePosixPath
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import boundary, jobs_view
from routesparse.app.shell.access import Access, access
from routesparse.app.ui import elements, numbers, states
from routesparse.engine.calibration import fitted
from routesparse.engine.errors import InputError, ModelError, RouteSparseError
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.files import DEMO, offered, resolve, revision_of
from routesparse.engine.models.token_count import holds, most_tokens, part_of
from routesparse.engine.prompts.text import PromptText, decode_prompt
from routesparse.engine.stats import domains
from routesparse.engine.store import word_queries

_TOKENS = 4_096
_EVERY_S = 2.0
_MOST_TEXTS = 60
_LONGER = 1.05  # what texts that are compared may at most be, of each other
Text = tuple[str, PromptText]  # a domain's name, and one of its texts


def here(run: pd.Series) -> str | None:
    """What this machine can analyse with that is a run's model, the same weights; None where it is not here."""
    model = offered().get(run["model"])
    try:
        return model if model and revision_of(resolve(model)[0]) == run["model_revision"] else None
    except ModelError:
        return None


def request(model: str, like: pd.Series | None, domain: str, label: str) -> RunRequest:
    """A run's settings, or the defaults, for another text. Errors: ConfigError; InputError for settings of a run that
    no job has."""
    if like is None:
        return RunRequest(model=model, domain=domain, label=label, break_even=0, audit="rows")
    recorded, audit = like["config_json"], like["audit_depth"]
    made = RunRequest.like(recorded, model=model, audit=audit, break_even=0, domain=domain, label=label)
    scaled = {} if made.rope is None else {"rope": made.rope}
    config, fit = made.config(), fitted.of_model(str(like.get("model_revision")))
    if fit is not None:
        config = fit.floored(config)  # as the worker's run will be
    ours = json.loads(domains.settings_key(json.dumps(config.to_dict() | scaled)))
    theirs = json.loads(domains.settings_key(recorded))
    if other := sorted(name for name in {*ours, *theirs} if ours.get(name) != theirs.get(name)):
        told = ", ".join(other)
        raise InputError(
            f"the runs above differ in {told} from what a job here would have; choose other runs above, or use "
            "the command line"
        )
    return made


def _active(opened: Access) -> list[str]:
    """Texts that were queued together, while one of them waits or runs."""
    named = [job.sweep for job in opened.queue.jobs(("queued", "running")) if job.sweep is not None]
    sweeps = set(opened.queue.sweeps())
    return [one for one in dict.fromkeys(named) if one not in sweeps]


def _progress(active: list[str]) -> None:
    opened = access()
    opened.queue.requeue_lost()
    opened.look_into_spool()
    jobs_view.worker_note(opened.queue)
    for one in active:
        jobs_view.sweep_line(opened.queue, opened.queue.sweep(one), link=False)
    if _active(opened) != active:
        st.rerun()


def missing(opened: Access, others: pd.DataFrame, shown: pd.DataFrame) -> None:
    """A button that makes the runs that the comparison lacks, of prompts whose text was kept."""
    like = shown.iloc[-1]
    lacking = others.dropna(subset="domain").drop_duplicates("prompt_sha256")
    lacking = lacking[~lacking["prompt_sha256"].isin(shown["prompt_sha256"])]
    texts: list[Text] = []
    for row in lacking.to_dict("records"):
        kept = word_queries.words(opened.store, row["run_id"])
        if kept is not None:
            texts.append((row["domain"], decode_prompt(kept.text.encode(), row["prompt_name"])))
    model, tokens = here(like), int(shown["tokens"].median())
    if not texts or model is None:
        return
    new, active, why = _to_run(opened, model, like, texts, tokens)
    # As code: names are a reader's, and help is Markdown.
    named = [f"`{text.name.replace('`', '')}`" for _, text in new[:3]]
    named += [f"{len(new) - 3:,} more"] if len(new) > 3 else []
    label = f"Run {numbers.several(len(new), 'missing prompt')} with these settings"
    if _pressed(label, "make-missing", new, active, why, help=", ".join(named)):
        _submit(opened, model, like, new, tokens)


def _to_run(
    opened: Access, model: str, like: pd.Series | None, texts: Sequence[Text], tokens: int
) -> tuple[list[Text], int, str]:
    """Texts that are long enough and not active with these settings; how many are active; why none can be run."""
    try:
        if tokens > (most := most_tokens(model)):
            raise InputError(f"{tokens:,} tokens are more than this model reads, {most:,}")
        long = [one for one in texts if holds(model, one[1].text, int(tokens / _LONGER))]
        asked = [replace(request(model, like, of, text.name), owner=opened.queue.owner) for of, text in long]
    except InputError as error:
        return [], 0, f"{error}."
    jobs = {job.request_json for job in opened.queue.jobs(("queued", "running"), 1_000)}
    new = [one for one, wish in zip(long, asked, strict=True) if wish.to_json() not in jobs]
    return new, len(long) - len(new), "" if long or not texts else f"No text has {tokens:,} tokens."


def _pressed(label: str, key: str, new: list[Text], active: int, why: str, **look: Any) -> bool:
    """A button that queues the new texts, and beside it why it can't, or how many are active already."""
    with st.container(horizontal=True, vertical_alignment="center", gap="small"):
        pressed = st.button(label, key=key, disabled=bool(why) or not new, **look)
        waits = f"{numbers.several(active, 'text')} queued or running: see Runs." if active else ""
        elements.note(why or waits)
    return pressed and not why and bool(new)  # the second of two quick clicks comes when it is disabled


def card(opened: Access, like: pd.Series | None) -> None:
    """The form for a reader's own texts. like: a run of the comparison above, whose settings they get."""
    with elements.card("own", "Your own domains"):
        st.html(
            '<div class="rs-sub">Upload a folder that holds a folder a domain, each of its text files one prompt; '
            "three or more show the spread.</div>"
        )
        files = st.file_uploader("Folder of texts", accept_multiple_files="directory", key="domain-texts")
        models = offered()
        known = None if like is None else here(like)
        names = list(models)
        first = names.index(like["model"]) if like is not None and known else names.index(DEMO)
        one, two = st.columns(2)
        name = one.selectbox("Model", names, index=first, key="own-model")
        usual = _TOKENS if like is None else int(like["tokens"])
        tokens = two.number_input("Tokens of each prompt", 256, value=usual, step=256, key="own-tokens")
        texts, problems = read([(file.name, file.getvalue()) for file in files])
        for line in problems:
            states.field_error(line)
        new, active, why = _to_run(opened, models[name], like, texts, int(tokens))
        short = 0 if why else len(texts) - len(new) - active
        counts = pd.Series([domain for domain, _ in new], dtype=object).value_counts()
        if len(counts):
            elements.note(", ".join(f"{one}: {numbers.several(n, 'text')}" for one, n in counts.items()))
        if problems:
            why = f"First mend what is said above: {numbers.several(len(problems), 'problem')}."
        elif files and not (why or active) and len(counts) < 2:
            why = "Two domains are needed: two folders with such texts, in one folder."
        settings = "Settings: those of the runs above" if like is not None else "Default settings"
        absent = "" if like is None or known else f" Their model, {like['model']}, is not here: see Models."
        cut = f"Texts are cut to their first {int(tokens):,} tokens; those below {int(tokens / _LONGER):,} are left out"
        elements.note(f"{settings}. {cut}{f': {short}' if short else ''}.{absent}")
        label = f"Run {numbers.several(len(new), 'text')}" if texts else "Run them"
        if _pressed(label, "own-run", new, active, why, type="primary"):
            _submit(opened, models[name], like, new, int(tokens))
        if sweeps := _active(opened):
            boundary.timed(_progress, _EVERY_S)(sweeps)
        for ended in jobs_view.cancelled(opened.queue):
            if ended not in sweeps:
                jobs_view.sweep_line(opened.queue, opened.queue.sweep(ended), link=False)


def read(files: Sequence[tuple[str, bytes]]) -> tuple[list[Text], list[str]]:
    """Texts with their domains, the folders that they lie in, and what is wrong. files: paths in an uploaded folder."""
    texts, wrong = [], []
    for path, content in files[:_MOST_TEXTS]:
        place = PurePosixPath(path)
        if place.name.startswith("."):
            continue
        if len(place.parts) < 2:
            wrong.append(f"{place.name} lies in no folder: put each domain’s texts into a folder of its own.")
            continue
        try:
            texts.append((place.parts[-2], decode_prompt(content, place.name)))
        except InputError as error:
            wrong.append(f"{error}.")
    hashes = [text.sha256 for _, text in texts]
    for number, (_, text) in enumerate(texts):
        if (first := hashes.index(text.sha256)) < number:
            wrong.append(f"{texts[first][1].name} and {text.name} are the same text: upload it once.")
    if len(files) > _MOST_TEXTS:
        wrong.append(f"{len(files)} files: upload at most {_MOST_TEXTS} at once.")
    if len({domain for domain, _ in texts}) > domains.MOST:
        wrong.append(f"At most {domains.MOST} domains stand side by side: leave some folders out.")
    return texts, wrong


def _submit(opened: Access, model: str, like: pd.Series | None, texts: Sequence[Text], tokens: int) -> None:
    """Queue a job for each text, cut to one length."""
    try:
        with st.spinner("Cutting the texts"):
            parts = [part_of(model, text.text, tokens, "first") for _, text in texts]
        asked = [request(model, like, domain, text.name) for domain, text in texts]
        if len(asked) == 1:
            opened.queue.submit(asked[0], parts[0])
        else:
            opened.queue.submit_texts(asked, parts)
    except RouteSparseError as error:
        states.field_error(f"{error}. Nothing was queued; what you entered is still here.")
        return
    st.rerun()
