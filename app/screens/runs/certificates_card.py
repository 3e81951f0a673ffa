"""The stored certificates in a table of their own: they have no policy, no plan of ours and no times to compare."""

from __future__ import annotations

import zlib
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.runs import run_table, trash_card
from routesparse.app.shell import navigate
from routesparse.app.shell.access import Access
from routesparse.app.ui import elements, exports, numbers, tables
from routesparse.engine.export import certificate_words
from routesparse.engine.export.plain_text import visible
from routesparse.engine.store import certificate_queries, queries
from routesparse.engine.verdict import SIGNS

_MOST_WHOLE = 16  # rows of a table that needs no scroll bar


def card(opened: Access) -> None:
    """What was certified, newest first; nothing where there is none."""
    found = certificate_queries.certificates(opened.store)
    if found.empty:
        return
    with elements.card("certificates"):
        actions = st.container(horizontal=True, gap="small", vertical_alignment="center")
        verdicts = list(zip(found["verdict"], found["tolerance"], strict=True))
        levels = [certificate_words.level(*one) for one in verdicts]
        said = [
            f"{SIGNS[level]} {certificate_words.word(*one)}"
            for level, one in zip(levels, verdicts, strict=True)
        ]
        st.html(tables.sideways())
        event: Any = st.dataframe(
            run_table.colored(_table(found, said), levels),
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
            navigate.go("trust", run=queries.label(row["run_id"]))
        picked = found.iloc[[row for row in event.selection.rows if row < len(found)]]
        with actions:
            st.html('<div class="rs-h">Certificates</div>', width="content")
            if len(picked) == 1 and st.button("Open certificate", key="open-certificate", type="primary"):
                navigate.go("trust", run=queries.label(picked.iloc[0]["run_id"]))
            if len(picked):
                trash_card.delete_button(opened, list(picked["run_id"]), "delete-certificates")
        exports.chart_foot(
            "certificates",
            f"n = {numbers.several(len(found), 'certificate')} · what an attention did to a prompt, from random rows; "
            "no routing was recorded · ≤ and ≥: bounds over all rows at each one’s confidence · click a row to open "
            "it · –: no plan was given · source: certificate and claim",
            found if picked.empty else picked,
            "certificates",
        )


def _table(found: pd.DataFrame, said: list[str]) -> pd.DataFrame:
    def bounds(name: str, share: bool = False) -> pd.Series:
        return found[name].map(lambda bound: certificate_words.lower(bound, share), na_action="ignore")

    return pd.DataFrame(
        {
            "prompt": found["prompt_name"].map(visible),
            "certifies": found["plan"].fillna(found["function"]).map(visible),
            "verdict": said,
            "error": found["mean_error_bound"].map(certificate_words.upper),
            "worst": found["largest_error"].astype(float),
            "mass": bounds("mass_bound"),
            "hit": bounds("hit_rate_bound", True),
            "tokens": found["tokens"],
            "model": found["model"],
            "device": found["device"].map(numbers.device),
            "created": pd.to_datetime(found["created_at"], utc=True, format="ISO8601", errors="coerce"),
            "run": found["run_id"].map(queries.label),
        }
    )


def _columns() -> dict[str, Any]:
    text, number = st.column_config.TextColumn, st.column_config.NumberColumn
    error = "Mean relative output error, each row up to 1; a single row may lose more"
    plan = "The plan, or the attention function where no plan was given"
    key = "Share of rows whose most attended key the plan reads"
    return {
        "prompt": text("Prompt", width=100),
        "certifies": text("Certifies", width=110, help=plan),
        "verdict": text("Verdict", width=160),
        "error": text("Mean error ≤", width=80, help=error),
        "worst": number("Worst row", format="%.2g", width=66, help="The largest error of the rows drawn"),
        "mass": text("Mass ≥", width=54, help="Mean retained mass of the plan"),
        "hit": text("Largest key ≥", width=82, help=key),
        "tokens": number("Tokens", format="localized", width=52),
        "model": text("Model", width=60),
        "device": text("Device", width=80),
        "created": run_table.columns()["created"],
        "run": text("Run", width=70),
    }
