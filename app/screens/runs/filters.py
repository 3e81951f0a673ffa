"""What the Runs table lists and how: filters, columns and grouping, all of it in the address."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd
import streamlit as st

from routesparse.app.screens.runs import run_table
from routesparse.app.shell import address, switch, verdict_bar
from routesparse.engine.store import queries
from routesparse.engine.verdict import LEVELS, WARNINGS, Verdict

_FILTERS = {"domain": "Domain", "model": "Model", "device": "Device", "policy": "Policy", "tag": "Tag"}
_SERVED = {"source": "From", "day": "Day, UTC"}  # offered where a server recorded any run
_WIDE = 210  # pixels that "server request" and a date need
# What happened in a run beside its verdict -> the count that says so.
_EVENTS = {
    "heads dense by fallback": "dense_fallback_units",
    "heads expanded by fallback": "expanded_units",
    "no time to expand": "unmet_units",
    "layers over the time limit": "over_budget_layers",
}


def row(values: dict[str, list[str]]) -> queries.RunFilter:
    """The filter fields, those of verdict and reason included; a field with a single value is left out."""
    with st.container(horizontal=True, gap="small", vertical_alignment="bottom", key="filters"):
        text = st.text_input(
            "Name, notes, tag or run id", key="q", bind="query-params", placeholder="all", width=170
        )
        chosen: dict[str, tuple[str, ...]] = {}
        for name, label in _FILTERS.items():
            few = len(values[name]) < (1 if name == "tag" else 2)
            if few and (wanted := st.query_params.get(name, "")) not in values[name]:
                address.absent(name, wanted)
            chosen[name] = () if few else switch.several(name, label, values[name])
        served = queries.SOURCES[1] in values["source"]
        for name, label in _SERVED.items():
            chosen[name] = switch.several(name, label, values[name], _WIDE) if served else ()
        switch.several("level", "Verdict", [verdict_bar.WORDS[level] for level in LEVELS])
        switch.several("reason", "Reason", [*WARNINGS, *_EVENTS])
    return queries.RunFilter(
        text,
        chosen["domain"],
        chosen["model"],
        chosen["device"],
        chosen["policy"],
        tags=chosen["tag"],
        sources=chosen["source"],
        days=chosen["day"],
    )


def judged(runs: pd.DataFrame, found: Sequence[Verdict]) -> tuple[pd.DataFrame, list[Verdict]]:
    """The runs whose verdict and reasons pass, with their verdicts, in the order of the page."""
    levels, reasons = set(st.session_state["level"]), set(st.session_state["reason"])
    events = runs[list(_EVENTS.values())].to_dict("records")
    kept = [
        place
        for place, (run, one) in enumerate(zip(events, found, strict=True))
        if (not levels or verdict_bar.WORDS[one.level] in levels)
        and (not reasons or reasons & _reasons(run, one))
    ]
    if st.session_state["grouped"]:
        group = runs.groupby("prompt_sha256", sort=False).ngroup()
        kept.sort(key=lambda place: group.iloc[place])  # stable: newest first within a prompt
    return runs.iloc[kept].reset_index(drop=True), [found[place] for place in kept]


def shape() -> tuple[list[str], bool]:
    """Which columns are shown, and whether the runs of one prompt stand together."""
    with st.popover("Columns", help="Which columns the table has; the address keeps them"):
        names = {name: label for name, label in run_table.LABELS.items() if name != "prompt"}
        asked = [name for name in st.query_params.get("columns", "").split(",") if name]
        wanted = [name for name in asked if name in names]
        address.absent("columns", ", ".join(name for name in asked if name not in names))
        chosen = wanted or list(run_table.SHOWN)
        switch.many("columns", "Columns", list(names), chosen, format_func=names.__getitem__, width=420)
    grouped = st.toggle(
        "Group by prompt",
        key="grouped",
        bind="query-params",
        help="Runs of one prompt stand together, and a column says by which settings they differ",
    )
    return chosen, grouped


def _reasons(run: dict[str, object], found: Verdict) -> set[str]:
    events = {name for name, column in _EVENTS.items() if not pd.isna(run[column]) and run[column]}  # type: ignore[call-overload]
    return events | {finding.reason for finding in found.findings}
