"""Home: what this is, one annotated sample, and two ways on: a tour of a sample, or a prompt of one's own."""

from __future__ import annotations

from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.screens.home import pattern_icons, sample_map
from routesparse.app.shell import navigate, no_runs, setting_words, verdict_bar, view
from routesparse.app.shell.access import access
from routesparse.app.ui import design, glossary, numbers, tables
from routesparse.engine.store import frames, queries, verdicts
from routesparse.engine.store.owner_view import OwnerView

_WHAT = (
    "RouteSparse reads a long prompt faster: it measures which keys each attention head needs on your prompt, and "
    "leaves out the rest.",
    "These pages show which head took which pattern, why, what every alternative lacked, and what dense attention "
    "would have found.",
    "Every run has a verdict, one colour and one sentence: what speaks against trusting it, if anything does.",
)
_LATEST = 5


def render() -> None:
    """Draw the page."""
    store = access().store
    runs = queries.runs(store)
    st.html(
        f'<div class="rs-title">RouteSparse</div><div class="rs-plain">{" ".join(map(escape, _WHAT))}</div>'
    )
    sample = store.made("sample", [], lambda: _sample(runs))
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="home-actions"):
        if sample is not None and st.button("Tour a sample", type="primary", key="tour"):
            navigate.go("map", run=queries.short_id(store, sample), tour=1)
        if st.button("Analyse my prompt", type="primary" if sample is None else "secondary", key="analyse"):
            navigate.go("new")
        if sample is None:
            deleted = no_runs.trashed(store)
            more = f" {deleted[0].upper()}{deleted[1:]}." if deleted else ""
            st.html(
                f'<div class="rs-sub">No sample is stored: it was deleted. Analyse a prompt to see a map.{more}</div>',
                width="stretch",
            )
            if deleted:
                navigate.link("Restore from the trash", "runs")
    left, right = st.columns([1.5, 1], gap="small")
    with left:
        if sample is not None:
            _sample_card(store, sample)
        if len(runs):
            _latest(store, runs.head(_LATEST))
    with right if len(runs) else left, st.container(border=True, key="card-patterns", gap="xsmall"):
        st.html('<div class="rs-h">The patterns</div>' + pattern_icons.html(design.current_theme()))


def _sample(runs: pd.DataFrame) -> str | None:
    """The sample to tour: with fallbacks rather than without, audited rather than not; without a sample a run of the
    user's."""
    routed = runs[runs["routed"]]
    samples = routed[routed["is_sample"]]
    found = samples if len(samples) else routed
    if found.empty:
        return None
    eventful = found["expanded_units"] + found["dense_fallback_units"] > 0
    ranked = found.assign(eventful=eventful, audited=found["audit_rows"] > 0)
    ranked = ranked.sort_values(["eventful", "audited"], ascending=False, kind="stable")
    return str(ranked.iloc[0]["run_id"])


def _sample_card(store: OwnerView, run_id: str) -> None:
    run = queries.run(store, run_id)
    choices = queries.choices(store, run_id, 0)
    if run is None or choices.empty:
        return
    with st.container(border=True, key="card-sample", gap="xsmall"):
        st.html(
            f'<div class="rs-h">What you will see: {escape(run.prompt_name)}, {run.tokens:,} tokens, '
            f"{numbers.share(run.density)} of the causal area kept{glossary.mark('kept')}</div>"
        )
        verdict_bar.of_run(store, run_id)
        theme = design.current_theme()
        drawn = store.made(
            "sample map",
            [theme.name],
            lambda: sample_map.html(run, choices, view.first_pick(choices), theme),
            of=[run_id],
        )
        st.html(drawn)


def _latest(store: OwnerView, runs: pd.DataFrame) -> None:
    with st.container(border=True, key="card-latest", gap="xsmall"):
        table = store.made("latest", [], lambda: _latest_html(store, runs))
        st.html(f'<div class="rs-h">Latest runs</div>{table}')
        navigate.link("All runs", "runs")


def _latest_html(store: OwnerView, runs: pd.DataFrame) -> str:
    rows = "".join(
        f'<tr><td class="l wrap"><a href="{escape(navigate.address("map", run=queries.short_id(store, row.run_id)))}" '
        f'target="_self">{escape(row.prompt_name)}</a>{" · sample" if row.is_sample else ""}<br><span class="rs-note">'
        f"{escape(setting_words.of_run(row._asdict()))} · {escape(queries.label(row.run_id))}</span></td>"
        f'<td>{row.tokens:,} tokens</td><td class="l say">{verdict_bar.line_html(found)}</td></tr>'
        for row, found in zip(frames.rows(runs), verdicts.of_rows(runs), strict=True)
    )
    return tables.framed(rows)
