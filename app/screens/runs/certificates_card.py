"""The stored certificates in a table of their own: they have no policy, no plan of ours and no times to compare."""

from __future__ import annotations

import zlib
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.runs import trash_card
from routesparse.app.shell import navigate
from routesparse.app.shell.access import Access
from routesparse.app.ui import design, exports, numbers, tables
from routesparse.app.ui.plain_text import visible
from routesparse.engine.export import certificate_words
from routesparse.engine.store import certificate_queries, queries
from routesparse.engine.verdict import SIGNS

_MOST_WHOLE = 16  # rows of a table that needs no scroll bar


def card(opened: Access) -> None:
    """What was certified, newest first; nothing where there is none."""
    found = certificate_queries.certificates(opened.store)
    if found.empty:
        return
    with st.container(border=True, key="card-certificates", gap="xsmall"):
        actions = st.container(horizontal=True, gap="small", vertical_alignment="center")
        levels = [
            certificate_words.level(verdict, tolerance)
            for verdict, tolerance in zip(found["verdict"], found["tolerance"], strict=True)
        ]
        colors = [f"color: {design.current_theme().levels[level]}; font-weight: 600" for level in levels]
        st.html(tables.sideways())
        event: Any = st.dataframe(
            _table(found, [SIGNS[level] for level in levels]).style.apply(
                lambda column: colors, subset=["verdict"]
            ),
            column_config=_columns(),
            hide_index=True,
            height="auto" if len(found) <= _MOST_WHOLE else 560,
            placeholder="–",
            on_select="rerun",
            selection_mode=["multi-row", "single-cell"],
            # Selections are row numbers: another list of certificates is another table.
            key=f"certificates-table-{zlib.crc32(''.join(found['run_id']).encode()):08x}",
        )
        if event.selection.cells:
            row = found.iloc[event.selection.cells[0][0]]
            navigate.go("certificate", run=queries.label(row["run_id"]))
        picked = found.iloc[[row for row in event.selection.rows if row < len(found)]]
        with actions:
            st.html('<div class="rs-h">Certificates</div>', width="content")
            if len(picked) == 1 and st.button("Open certificate", key="open-certificate", type="primary"):
                navigate.go("certificate", run=queries.label(picked.iloc[0]["run_id"]))
            if len(picked):
                trash_card.delete_button(list(picked["run_id"]), "delete-certificates", "they")
        exports.chart_foot(
            "certificates",
            f"n = {numbers.several(len(found), 'certificate')} · what an attention did to a prompt, from random rows; "
            "no routing was recorded · ≤ and ≥: bounds over all rows at each one’s confidence · click a row to open "
            "it · –: no plan was given · source: certificate and claim",
            found if picked.empty else picked,
            "certificates",
        )


def _table(found: pd.DataFrame, signs: list[str]) -> pd.DataFrame:
    return pd.DataFrame(
        {
            "prompt": found["prompt_name"].map(visible),
            "certifies": found["plan"].fillna(found["function"]).map(visible),
            "verdict": [
                f"{sign} {certificate_words.word(verdict, tolerance)}"
                for sign, verdict, tolerance in zip(signs, found["verdict"], found["tolerance"], strict=True)
            ],
            "error": [certificate_words.upper(value) for value in found["mean_error_bound"]],
            "worst": found["largest_error"].astype(float),
            "mass": _known(found["mass_bound"]),
            "hit": _known(found["hit_rate_bound"], share=True),
            "tokens": found["tokens"],
            "model": found["model"],
            "device": found["device"].map(numbers.device),
            "created": pd.to_datetime(found["created_at"], utc=True, format="ISO8601", errors="coerce"),
            "run": found["run_id"].map(queries.label),
        }
    )


def _known(bounds: pd.Series, share: bool = False) -> list[str | None]:
    return [None if numbers.is_missing(value) else certificate_words.lower(value, share) for value in bounds]


def _columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "prompt": column.TextColumn("Prompt", width=100),
        "certifies": column.TextColumn(
            "Certifies", width=110, help="The plan, or the attention function where no plan was given"
        ),
        "verdict": column.TextColumn("Verdict", width=160),
        "error": column.TextColumn(
            "Mean error ≤",
            width=80,
            help="Mean relative output error, each row up to 1; a single row may lose more",
        ),
        "worst": column.NumberColumn(
            "Worst row", format="%.2g", width=66, help="The largest error of the rows drawn"
        ),
        "mass": column.TextColumn("Mass ≥", width=54, help="Mean retained mass of the plan"),
        "hit": column.TextColumn(
            "Largest key ≥", width=82, help="Share of rows whose most attended key the plan reads"
        ),
        "tokens": column.NumberColumn("Tokens", format="localized", width=52),
        "model": column.TextColumn("Model", width=60),
        "device": column.TextColumn("Device", width=80),
        "created": column.DatetimeColumn("Created, UTC", format="MM-DD HH:mm", width=84, timezone="UTC"),
        "run": column.TextColumn("Run", width=70),
    }
