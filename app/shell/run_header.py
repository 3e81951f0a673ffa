"""What pages about one run share: which run the address means, its headline, its segments."""

from __future__ import annotations

import json
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.shell import (
    certificate_link,
    export_menu,
    navigate,
    new_run_address,
    setting_words,
    switch,
    tour,
    verdict_bar,
    view,
)
from routesparse.app.shell.view import View
from routesparse.app.ui import numbers, states
from routesparse.engine.errors import InputError
from routesparse.engine.export.plain_text import visible
from routesparse.engine.rows import RunRow
from routesparse.engine.store import bundle, label_queries, queries, word_queries
from routesparse.engine.store.owner_view import OwnerView

_USUAL = ("no time limit", "calibration none", "probe exact")  # which a run's line leaves out


def open_run(store: OwnerView, title: str) -> RunRow | None:
    """The run that the address names, else the one opened last, else the newest."""
    named = st.query_params.get("run")
    if named:
        try:
            run_id = queries.resolve(store, named)
        except InputError as error:
            if certificate_link.instead(store, named, title):
                return None
            st.html(f'<div class="rs-title">{title}</div>')
            told = str(error)
            states.problem(
                "This link leads nowhere", [f"{told[0].upper()}{told[1:]}.", "Pick a run on the Runs page."]
            )
            navigate.link("Runs", "runs")
            return None
    else:
        last = st.session_state.get("run")
        newest = last if last and store.key(last) else queries.newest(store)
        if newest is None:
            st.html(f'<div class="rs-title">{title}</div>')
            no_runs(
                store,
                [
                    "Analyse a prompt on the New run page, or a text file on the command line; it appears here."
                ],
            )
            return None
        run_id = newest
        view.write(run=queries.short_id(store, run_id))
    st.session_state["run"] = run_id
    return queries.run(store, run_id)


def header(store: OwnerView, run: RunRow, title: str, head: tuple[int, int] | None = None) -> None:
    """Title, the run in one line, and the verdict on it. head: the layer and head that the page shows first."""
    label = label_queries.label(store, run.run_id)
    view.number("segment", run.segments), view.number("batch", run.batch)  # some pages read neither
    tab_title(title if head is None else f"L{head[0]} H{head[1]}", label.name or run.prompt_name)
    facts = [
        f"{run.tokens:,} tokens",
        run.model,
        *setting_words.rope(setting_words.recorded_rope(run.config_json)).values(),
        numbers.device(run.device),
        policy_words(run),
        setting_words.time_limit(run.budget),
        *setting_words.break_even(json.loads(run.config_json).get("break_even_tokens")),
        *([] if run.tuned_price is None else [f"quality {run.tuned_price}"]),
        f"calibration {run.calibration or 'none'}",
        f"probe {run.probe_mode}",
    ]
    facts = [fact for fact in facts if fact not in _USUAL]
    named = run.prompt_name if run.domain is None else f"{run.domain}/{run.prompt_name}"
    name = f"<b><bdi>{escape(visible(named))}</bdi></b>"
    if label.name:
        name = f"<b><bdi>{escape(visible(label.name))}</bdi></b> · prompt {name}"
    with st.container(horizontal=True, gap="small", key="run-header"):
        st.html(
            f'<div class="rs-title">{escape(title)}</div><div class="rs-sub">{name} · '
            f"{escape(' · '.join(facts))} · run {escape(queries.label(run.run_id))}</div>",
            width="stretch",
        )
        export_menu.menu(store, run.run_id)
    verdict_bar.of_run(store, run.run_id)
    folder = store.bundle(run.run_id)
    if folder is not None and (cut := bundle.cut_files(folder)):
        states.note(
            f"This run’s bundle is damaged ({', '.join(cut)}): shown is what the store took in from it before, and no "
            "export can be made. Restore a backup, or analyse the prompt again."
        )
    again = {**new_run_address.of_run(run), "from": queries.short_id(store, run.run_id)}
    if not run.routed:
        told = "Route it anyway" + (
            "" if word_queries.words(store, run.run_id) else ": choose the prompt again"
        )
        navigate.link(told, "new", **{**again, "break_even": 0})
    elif run.sparse_units and run.top1_agreement is None:
        navigate.link("Run it again with dense beside it", "new", **{**again, "dense": "true"})
    if run.sweep is not None:
        navigate.link("One setting of a sweep: see the others", "compare", sweep=run.sweep)
    tour.strip(queries.short_id(store, run.run_id))


def tab_title(*parts: str) -> None:
    """What the browser's tab and its history call this view: "L3 H2 · prose.txt · RouteSparse"."""
    st.set_page_config(page_title=" · ".join([*map(visible, parts), "RouteSparse"]))


def policy_words(run: RunRow) -> str:
    """How candidates were chosen: "policy certified, τ 0.90" or "policy priced, price 0.3, τ layer 0.70"."""
    told = ", ".join(setting_words.router(run.policy, run.price, run.tau, run.tau_layer).values())
    return told if run.tau_layer is None else f"{told}, τ head {numbers.threshold(run.tau)}"


def segment_selector(run: RunRow, shown: View, choices: pd.DataFrame) -> None:
    """Which segment, and which prompt of a batch; both live in the address."""
    first = choices.iloc[0]
    span = numbers.tokens(int(first["first_token"]), int(first["tokens"]))
    tail = int(first["tokens"] - first["body_tokens"])
    note = f"tokens {span}" + (f", the last {tail} dense (tail)" if tail else "")
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        segment_slider(shown.segment, run.segments, note)
        if run.batch > 1:
            switch.field("batch", "Prompt of the batch", list(range(run.batch)), shown.batch_index, width=120)


def segment_slider(shown: int, segments: int, note: str = "") -> None:
    """Which segment is shown, and how to show another one."""
    place = [f"Segment {shown + 1} of {segments}"] if segments > 1 else []
    if told := " · ".join([*place, *([note] if note else [])]):
        st.html(f'<div class="rs-sub">{told}</div>', width="content")
    if segments < 2:
        return
    st.session_state["segment-choice"] = shown + 1
    st.slider(
        "Segment",
        1,
        segments,
        key="segment-choice",
        label_visibility="collapsed",
        width=220,
        on_change=switch.write,
        args=("segment", "segment-choice", shown + 1, lambda chosen: str(chosen - 1)),
    )


def no_runs(store: OwnerView, lines: list[str]) -> None:
    """A page without a run to show: how to get one, and that deleted ones wait in the trash."""
    deleted = trashed(store)
    states.empty(f"No runs: {deleted}" if deleted else "No runs yet", lines, states.ANALYZE)
    navigate.link("New run", "new")
    if deleted:
        navigate.link("Restore from the trash", "runs")


def trashed(store: OwnerView) -> str:
    """How many runs are in the trash, as a clause; nothing where none is."""
    count = len(label_queries.trash(store))
    return f"{numbers.several(count, 'run')} {'is' if count == 1 else 'are'} in the trash" if count else ""
