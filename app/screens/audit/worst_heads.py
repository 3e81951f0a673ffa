"""The units that the dense audit found worst, one click from their Head page."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, switch, view
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, drift_note, exports, glossary, numbers, tables
from routesparse.engine.store import audit_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

MOST = 15
ORDERS = {
    "error": "Output error",
    "worst_row": "Worst row",
    "margin": "Least margin",
    "mass": "Least retained mass",
}


def card(store: OwnerView, shown: Scope) -> None:
    """The worst audited units in a table, by the order that the address names; each links to its head."""
    order = switch.chosen("worst", ORDERS)
    rows = audit_queries.worst(store, shown.run_ids, order, MOST)
    with st.container(border=True, key="card-worst", gap="xsmall"):
        with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
            st.html('<div class="rs-h">Worst heads</div>', width="content")
            switch.buttons("worst", ORDERS, order)
        st.html(
            _table(store, rows, shown.everything, shown.run.confidence) + drift_note.of_several(shown.runs)
        )
        if not shown.everything:
            navigate.link(
                "The worst rows of this run in words", "text", run=queries.short_id(store, shown.run.run_id)
            )
        exports.chart_foot(
            f"worst-heads-{order}-{shown.name}",
            f"n = the {len(rows)} worst of {int(shown.runs['sparse_units'].sum()):,} sparse units, audited or not · "
            f"masses as share of 1, errors relative · source: audit and head_choice of {shown.words}",
            rows,
            "worst",
        )


def _table(store: OwnerView, rows: pd.DataFrame, with_run: bool, confidence: float) -> str:
    theme = design.current_theme()
    heading = glossary.heading
    # Not every row reaches it, so that the worst one may lie below.
    of_rows = f"{numbers.share(confidence, 0)} of rows"
    run_head = '<th class="l">prompt</th>' if with_run else ""
    head = (
        f'{run_head}<th class="l">head</th><th class="l">choice</th>'
        f"{heading('certified', 'certificate')}{heading('conformal', 'conformal')}{heading(of_rows, 'row_statement')}"
        f"<th>audited mass</th><th>worst row’s mass</th>{heading('error', 'error')}<th>worst row’s error</th>"
        f"{heading('bound', 'tight')}"
    )
    body = []
    for row in frames.rows(rows):
        unit = queries.Unit(
            str(row.run_id), int(row.layer), int(row.head), int(row.segment), int(row.batch_index)
        )
        link = escape(navigate.address("head", **view.address_of(store, unit)))
        color = design.pattern_color(theme, row.pattern, row.density)
        run_cells = (
            f'<td class="l w" title="run {escape(queries.label(unit.run_id))}">{escape(row.prompt_name)}</td>'
            if with_run
            else ""
        )
        body.append(
            f'<tr>{run_cells}<td class="l"><a href="{link}" target="_self">layer {row.layer}, head {row.head}'
            f'{f", segment {row.segment + 1}" if row.segment else ""}</a></td><td class="l"><span class="cell" '
            f'style="background:{color};color:{design.text_on(color)}">{design.letter(row.pattern)}</span> '
            f"{escape(row.budget)}</td>"
            + "".join(
                f"<td>{_cell(value, digits)}</td>"
                for value, digits in (
                    (row.lower_mass, 3),
                    (row.conformal_lower_mass, 3),
                    (row.row_lower_mass, 3),
                    (row.audited_mass, 3),
                    (row.audited_min_mass, 3),
                    (row.mean_error, 4),
                    (row.max_error, 3),
                    (row.bound_tight, 2),
                )
            )
            + "</tr>"
        )
    return tables.framed(f"<tr>{head}</tr>{''.join(body)}")


def _cell(value: Any, digits: int) -> str:
    return "–" if numbers.is_missing(value) else numbers.mass(value, digits)
