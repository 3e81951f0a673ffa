"""The log of failed certificates: what was tested, by how much it missed, what replaced it, and the added time."""

from __future__ import annotations

from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, view, way_back
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, exports, glossary, numbers, tables
from routesparse.engine.store import fallback_queries, queries
from routesparse.engine.store.owner_view import OwnerView

MOST = 1000


def card(store: OwnerView, shown: Scope, total: int, uncertified: int) -> None:
    """The ``uncertified`` units, whose certificate failed without consequence, and the most expensive of the ``total``
    failed certificates that had one; a click on a row opens its head."""
    with st.container(border=True, key="card-events", gap="xsmall"):
        st.html(
            f'<div class="rs-h">Failed certificates: those without consequence, then the most expensive'
            f"{glossary.mark('fallback')}</div>"
        )
        if not total:
            told = "Every certificate that was tested reached its τ: nothing fell back."
            if uncertified:
                told = f"Nothing fell back, but {numbers.several(uncertified, 'unit')} ran uncertified."
            st.html(f'<div class="rs-sub">{told}</div>')
        if not total + uncertified:
            return
        events = fallback_queries.events(store, shown.run_ids, MOST)
        table = _rows(events, shown.everything)
        st.html(tables.sideways())
        picked = st.dataframe(
            table,
            column_config=_columns(),
            hide_index=True,
            # Stretched, all columns grow alike: those of a digit, too.
            width="content",
            height="auto" if len(table) <= 12 else 420,
            placeholder=numbers.NOT_MEASURED,
            on_select="rerun",
            selection_mode="single-cell",
            key=f"events-{shown.name}",
        )
        if picked.selection.cells:
            _open_head(store, events.iloc[picked.selection.cells[0][0]])
        drawn = f"{len(events):,} of " if len(events) < total + uncertified else ""
        missed = f" and {numbers.several(uncertified, 'uncertified unit')}" if uncertified else ""
        exports.chart_foot(
            f"fallback-events-{shown.name}",
            f"n = {drawn}{numbers.several(total, 'event')}{missed} · masses as share of 1, µs as predicted · "
            f"click a row to open its head · source: fallback_event and head_choice of {shown.words}",
            events,
            "events",
        )


def _rows(events: pd.DataFrame, with_run: bool) -> pd.DataFrame:
    def candidate(side: str) -> pd.Series:
        letters = events[f"{side}_pattern"].map(design.letter, na_action="ignore")
        return (letters + " · " + events[f"{side}_budget"]).fillna(numbers.NOT_MEASURED)

    # Who writes no scope knows heads' certificates only.
    whose = {"of": events["scope"].fillna("head")} if (events["scope"] == "layer").any() else {}
    run = {"run": events["run_id"].map(queries.label), "prompt": events["prompt_name"]} if with_run else {}
    return pd.DataFrame(
        {
            **run,
            "layer": events["layer"],
            "head": events["head"],
            "segment": events["segment"] + 1,
            "tested": candidate("from"),
            "certified": events["lower_mass"].map(numbers.rounded_down, na_action="ignore"),
            "tau": events["tau"],
            # Another plan replaced it, all keys among them, or nothing did.
            "to": candidate("to").mask(events["kind"] == "uncertified", "ran uncertified"),
            "paid": events["paid_us"].round(),
            "deficit": events["deficit"],
            "test": events["test"],
            **whose,
        }
    )


def _columns() -> dict[str, Any]:
    """Digits get few pixels; budgets, without a width, as many as they need. Where not all has room, as in a window of
    1024 pixels, what the others imply stands last."""
    column = st.column_config
    return {
        "run": column.TextColumn("Run", width=80),
        "prompt": column.TextColumn("Prompt", width=130),
        "layer": column.NumberColumn("Layer", width=46),
        "head": column.NumberColumn("Head", width=44),
        "segment": column.NumberColumn("Segment", width=62),
        "test": column.NumberColumn("Test", width=40, help="Which of the head's certificate tests this was"),
        "of": column.TextColumn(
            "Of",
            width=50,
            help="Whose certificate failed: the head's own, or its layer's, with which it climbed",
        ),
        "tested": column.TextColumn("Tested"),
        "certified": column.NumberColumn(
            "Certified", format="%.3f", width=66, help=glossary.TERMS["certificate"]
        ),
        "tau": column.NumberColumn("τ", format="%.2f", width=40, help=glossary.TERMS["tau"]),
        "deficit": column.NumberColumn(
            "Missed by", format="%.3f", width=68, help="τ minus the certified mass"
        ),
        "to": column.TextColumn(
            "Now",
            help="What replaced it: a more expensive candidate, or dense attention, all keys",
        ),
        "paid": column.NumberColumn("Paid µs", format="localized", width=60, help=glossary.TERMS["paid"]),
    }


def _open_head(store: OwnerView, event: pd.Series) -> None:
    unit = queries.Unit(
        str(event["run_id"]),
        int(event["layer"]),
        int(event["head"]),
        int(event["segment"]),
        int(event["batch_index"]),
    )
    way_back.remember("fallbacks")
    navigate.go("head", **view.address_of(store, unit))
