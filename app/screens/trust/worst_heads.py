"""The units that the audit found worst, by mean output error; each leads to its head on the map."""

from __future__ import annotations

from html import escape

import streamlit as st

from routesparse.app.shell import navigate, view
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, exports, glossary, numbers, tables
from routesparse.engine.store import audit_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

MOST = 15


def card(store: OwnerView, shown: Scope) -> None:
    """Draw it."""
    rows = audit_queries.worst(store, shown.run_ids, MOST)
    theme, heading = design.current_theme(), glossary.heading
    head = (
        f'{"<th class=l>prompt</th>" if shown.everything else ""}<th class="l">head</th><th class="l">choice</th>'
        f"{heading('error', 'error')}<th>worst row’s error</th>{heading('its bound', 'tight')}<th>audited mass</th>"
        f"<th>worst row’s mass</th>{heading('certified', 'certificate')}"
    )
    body = []
    for row in frames.rows(rows):
        unit = queries.Unit(str(row.run_id), *map(int, (row.layer, row.head, row.segment, row.batch_index)))
        link = escape(navigate.address("map", **view.address_of(store, unit)))
        run = f' title="run {escape(queries.label(unit.run_id))}"'
        prompt = f'<td class="l w"{run}>{escape(row.prompt_name)}</td>' if shown.everything else ""
        name = f"layer {row.layer}, head {row.head}" + (f", segment {row.segment + 1}" if row.segment else "")
        values = (
            numbers.mass(row.mean_error, 4),
            numbers.mass(row.max_error),
            numbers.mass(row.bound_tight, 2),
            numbers.mass(row.audited_mass),
            numbers.mass(row.audited_min_mass),
            numbers.bound(row.lower_mass),
        )
        body.append(
            f'<tr>{prompt}<td class="l"><a href="{link}" target="_self">{name}</a></td><td class="l">'
            f"{tables.pattern_cell(theme, row.pattern, row.density)} {escape(row.budget)}</td>"
            f"{''.join(f'<td>{value}</td>' for value in values)}</tr>"
        )
    with st.container(border=True, key="card-worst", gap="xsmall"):
        st.html(
            '<div class="rs-h">Worst heads, by output error</div>'
            + tables.framed(f"<tr>{head}</tr>{''.join(body)}")
        )
        if not shown.everything:
            navigate.link(
                "The worst rows of this run in words", "text", run=queries.short_id(store, shown.run.run_id)
            )
        exports.chart_foot(
            f"worst-heads-{shown.name}",
            f"n = the {len(rows)} worst of {int(shown.runs['sparse_units'].sum()):,} sparse units, audited or not · "
            f"masses as share of 1, errors relative · source: audit and head_choice of {shown.words}",
            rows,
            "worst",
        )
