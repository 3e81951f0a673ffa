"""Which runs the pages under Trust cover: the run in the address, or all stored runs of the same weights.

The scope lives in the query string (``scope=all``, ``domain=...``). Runs of other weights are never mixed in:
their head of the same number is another head.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.shell import run_header, switch, verdict_bar
from routesparse.app.ui import numbers
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries, verdicts
from routesparse.engine.store.owner_view import OwnerView

_NAMES = {"run": "This run", "all": "All runs of these weights"}


@dataclass(frozen=True)
class Scope:
    """``runs``: the runs that the page's tables cover, newest first; ``same``: all runs of the same weights."""

    run: RunRow
    everything: bool
    runs: pd.DataFrame
    same: pd.DataFrame

    @property
    def run_ids(self) -> list[str]:
        """The ids of the runs covered."""
        return list(self.runs["run_id"])

    @property
    def nothing(self) -> tuple[str, list[str]]:
        """Why no run is covered where all are asked for, and what to do."""
        if self.same.empty:
            return "No run of these weights was routed", [
                "Analyse a longer prompt, or one with break-even 0."
            ]
        return "No run passes the filter", ["Clear the domains above to see the others again."]

    @property
    def words(self) -> str:
        """The runs covered, for the line under a chart."""
        if self.everything:
            return f"{numbers.several(len(self.runs), 'run')} of model {self.run.model}"
        return f"run {queries.label(self.run.run_id)}"

    @property
    def name(self) -> str:
        """The runs covered, for the name of a file."""
        return f"all-{self.run.model}" if self.everything else queries.label(self.run.run_id)


def open_scope(store: OwnerView, title: str) -> Scope | None:
    """The scope that the address names, its header and its controls drawn; None where there is no run to show."""
    run = run_header.open_run(store, title)
    if run is None:
        return None
    everything = switch.chosen("scope", ["run", "all"]) == "all"
    stored = queries.runs(store)
    same = store.made(
        "same weights",
        [run.model_revision],
        lambda: stored[(stored["model_revision"] == run.model_revision) & stored["routed"]].reset_index(
            drop=True
        ),
    )
    if everything:
        run_header.tab_title(title, f"all runs of {run.model}")
        st.html(
            f'<div class="rs-title">{escape(title)}</div><div class="rs-sub"><b>All runs</b> of model '
            f"{escape(run.model)}, revision {escape(run.model_revision)}: {numbers.several(len(same), 'run')}, "
            f"{numbers.several(same['prompt_sha256'].nunique(), 'prompt')}</div>"
        )
    else:
        run_header.header(store, run, title)
    shown = same if everything else same[same["run_id"] == run.run_id]
    with st.container(horizontal=True, gap="medium", vertical_alignment="center", key="scope-row"):
        switch.buttons("scope", _NAMES, "all" if everything else "run")
        domains = sorted(same["domain"].dropna().unique())
        if everything and len(domains) > 1:
            chosen = st.multiselect(
                "Domain",
                domains,
                key="domain",
                bind="query-params",
                placeholder="all domains",
                label_visibility="collapsed",
                width=320,
            )
            if chosen:
                shown = shown[shown["domain"].isin(chosen)]
    if everything and len(shown):
        st.html(verdict_bar.counts_html(verdicts.of_rows(shown)))
    return Scope(run, everything, shown.reset_index(drop=True), same)


def length_bucket(tokens: int) -> str:
    """The power-of-two range of a prompt's length: 7,345 is "4,097–8,192"."""
    high = 1 << max(0, int(tokens) - 1).bit_length()
    return f"{high // 2 + 1:,}–{high:,}"
