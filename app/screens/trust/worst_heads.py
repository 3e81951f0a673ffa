"""The units that the audit found worst, by mean output error; each leads to its head on the map."""

from __future__ import annotations

from html import escape

import streamlit as st

from routesparse.app.shell import navigate, view
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, elements, exports, glossary, numbers, tables
from routesparse.engine.store import audit_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

MOST = 5


def card(store: OwnerView, shown: Scope) -> None:
    """Draw it."""
    rows = audit_queries.worst(store, shown.run_ids, MOST)
    theme, heading = design.current_theme(), glossary.heading
    heads = ["prompt"] if shown.everything else []
    heads += ["head", "choice", heading("error", "error"), "worst row’s error"]
    heads += ["audited mass", "worst row’s mass", heading("certified mass", "certificate")]
    lines = []
    for row in frames.rows(rows):
        unit = queries.Unit(str(row.run_id), *map(int, (row.layer, row.head, row.segment, row.batch_index)))
        link = escape(navigate.address("map", **view.address_of(store, unit)))
        segment = f", segment {row.segment + 1}" if row.segment else ""
        lines.append(
            [
                *([escape(row.prompt_name)] if shown.everything else []),
                f'<a href="{link}" target="_self">layer {row.layer}, head {row.head}{segment}</a>',
                f"{tables.pattern_cell(theme, row.pattern, row.density)} {escape(row.budget)}",
                numbers.mass(row.mean_error, 4),
                numbers.mass(row.max_error),
                numbers.mass(row.audited_mass),
                numbers.mass(row.audited_min_mass),
                numbers.bound(row.lower_mass),
            ]
        )
    table = tables.table(heads, lines, range(3 if shown.everything else 2))
    with elements.card("worst", "Worst heads, by output error"):
        st.html(table)
        if not shown.everything:
            navigate.link(
                "The worst rows of this run in words", "text", run=queries.short_id(store, shown.run.run_id)
            )
        exports.chart_foot(
            f"worst-heads-{shown.name}",
            f"n = the {len(rows)} worst of {int(shown.runs['sparse_units'].sum()):,} sparse units · errors relative · "
            f"source: audit and head_choice of {shown.words}",
            rows,
            "worst",
        )
