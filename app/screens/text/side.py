"""Beside the text: who reads the selection, head by head, and the worst audited rows."""

from __future__ import annotations

import math
from html import escape
from typing import Any

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.screens.text import find, lens, selection
from routesparse.app.screens.text.selection import BELOW, Shown
from routesparse.app.shell import switch, view
from routesparse.app.ui import design, elements, exports, glossary, grid, numbers
from routesparse.app.unit import row_words
from routesparse.engine.export.plain_text import visible
from routesparse.engine.store import queries
from routesparse.engine.store.block_shares import BlockShares
from routesparse.engine.store.word_queries import Words

_UNREAD = "no sparse row comes after it"


def heads_card(shown: Shown, shares: BlockShares | None, found: find.Found, parts: selection.Parts) -> None:
    """Layer x head: who reads the selection; without one, what each head loses."""
    if shares is None:
        return
    with elements.card("heads"):
        is_loss = not parts and shares.lost is not None
        if parts:
            per_part = selection.part_shares(shares, parts)
            values = selection.mean(per_part)
            title, note = (
                f"Who still reads {_named(shown, found, parts)}?",
                "read by later rows, mean over the parts",
            )
        elif shares.lost is not None:
            known_loss = ~np.isnan(shares.lost).all(-1)
            values = np.where(known_loss, np.nansum(shares.lost, -1), np.nan)
            title, note = "How much attention does each head lose?", "attention lost by a mean audited row"
        else:
            values = selection.mean(shares.reads)
            title, note = (
                "How much of the prompt does each head read?",
                "read by later rows, mean over the prompt",
            )
            if (together := max(shares.pool, shares.coarse)) > 1:
                title = "How much of the prompt does each head read, at most?"
                note += f", {together} KV blocks recorded as one, of which one is enough: the map has each head’s share"
        dropped = np.nan_to_num(values, nan=1.0) < shown.below if parts else np.zeros(values.shape, bool)
        known = int((~np.isnan(values)).sum())
        st.html(f'<div class="rs-h">{title}{glossary.mark("dropped") if parts else ""}</div>')
        if parts:
            verdict = (
                f"little read by {int(dropped.sum()):,} of {numbers.several(known, 'head')}"
                f"{_singly(per_part, shown.below)}"
                if known
                else "only the dense tail comes after it, which reads everything in every head"
            )
            st.html(f'<div class="rs-dropped" role="status">{verdict}</div>')
            elements.note("Little read: by this share of later rows")
            switch.buttons("below", BELOW, f"{100 * shown.below:g}")
        peak = float(np.nanmax(values, initial=0)) or 1.0
        drawn = _drawing(shown, values, dropped, note, peak if is_loss else None)
        place = grid.show(drawn, "heads", f"{note}, by head", picks=True)
        if place is not None:
            st.query_params.pop("row", None)
            view.write(layer=place[0], head=place[1], scope="head")
            st.rerun()
        if parts and "at" in st.query_params and len(found.spans):
            st.button("All occurrences", key="quiet-all-parts", type="tertiary", on_click=_all_parts)
        layers, columns = np.indices(values.shape)
        rows = pd.DataFrame(
            {
                "layer": layers.ravel(),
                "head": columns.ravel(),
                "attention_lost" if is_loss else "read_by_later_rows": values.ravel(),
                "little_read": dropped.ravel(),
            }
        )
        exports.chart_foot(
            f"heads-{queries.label(shown.run.run_id)}",
            f"n = {known:,} heads · {note}, %"
            + (
                f", {numbers.several(len(parts), 'part')} · slash: little read, below {100 * shown.below:g} %"
                if parts
                else ""
            )
            + f" · strongest shade {numbers.share(peak if is_loss else 1.0)}",
            rows,
            "heads",
            chart="heads",
        )


def _drawing(
    shown: Shown, values: np.ndarray, dropped: np.ndarray, note: str, most_lost: float | None
) -> dict[str, Any]:
    """Layer x head: a number in per cent each, a slash where it is dropped; most_lost: what full colour stands for."""
    theme = design.current_theme()
    high, scale = (theme.scale[1], 1.0) if most_lost is None else (theme.warn, most_lost)
    cells = []
    for (layer, head), value in np.ndenumerate(values):
        if np.isnan(value):
            color, text, told = theme.null, "", _UNREAD
        else:
            color = design.blend(theme.panel, high, round(0.06 + 0.94 * min(1.0, value / scale), 2))
            # Rounded to its side of the limit: a cell that says 50 is not below it.
            number = math.floor(100 * value) if dropped[layer, head] else round(100 * value)
            text = ("╱" if dropped[layer, head] else "") + ("<1" if number == 0 < value else str(number))
            told = f"{note}: {100 * value:.1f} %"
        hover = f"layer {layer}, head {head}\n{told}"
        cells.append((layer, head, color, text, hover, (layer, head) == shown.at))
    table = pd.DataFrame(cells, columns=["layer", "head", "color", "text", "hover", "framed"])
    return grid.by_head(
        table,
        values.shape,
        theme,
        strong=False,
        **table[["color", "text", "hover", "framed"]].to_dict("series"),
    )


def _named(shown: Shown, found: find.Found, parts: selection.Parts) -> str:
    """What was selected, as HTML."""
    if "at" in st.query_params and len(parts) == 1:
        first, last = parts[0]
        return escape(row_words.passage_name(shown.run, first, last - first + 1))
    more = "the first " if found.more else ""
    count = f"{more}{numbers.several(len(parts), 'occurrence')}"
    return f"“<bdi>{escape(visible(' '.join(found.phrase.split())))}</bdi>” ({count})"


def _singly(per_part: np.ndarray, below: float) -> str:
    """Behind a count that is about the mean of several parts: how many heads read a single one little.

    A head that reads one part little may read the others, so the mean is the milder figure.
    """
    if per_part.shape[-1] < 2:
        return ""
    counts = (np.nan_to_num(per_part, nan=1.0) < below).sum((0, 1))
    few, most = int(counts.min()), int(counts.max())
    single = f"{few:,}" if few == most else f"{few:,} to {most:,}"
    return f" on the mean of {per_part.shape[-1]:,} occurrences; of a single occurrence by {single}"


def worst_card(shown: Shown, worst: pd.DataFrame, words: Words | None) -> None:
    """The audited rows of the run whose output is farthest off, in words, each with what it lost most on."""
    with elements.card("worst", "Worst audited rows of this run, and the words they lost"):
        if worst.empty:
            told = (
                "Not recorded: the run is older than this list. Analyse the prompt again with audit “rows”."
            )
            if shown.run.sparse_units == 0:
                told = "Every head ran dense and reads all keys: there is nothing to lose."
            elif shown.run.audit_depth == "none":
                told = "Not audited. Analyse the prompt again with audit “rows”."
            elements.sub(told)
            return
        for number, (_, row) in enumerate(worst.iterrows()):
            loss = row_words.of_worst(row)
            with st.container(key=f"goto-worst-{number}"):
                st.button(
                    f"Layer {row['layer']}, head {row['head']}: {row_words.headline(loss)}",
                    key=f"worst-{number}",
                    type="tertiary",
                    on_click=_show_row,
                    args=(int(row["layer"]), int(row["head"]), loss.position),
                )
                html = row_words.context_html(words, loss.position, shown.run.block_k)
                if loss.passages:
                    block, count, share = loss.passages[0]
                    name = row_words.passage_name(shown.run, block, count)
                    html += f'<div class="rs-note">lost {numbers.share(share)} on {name}:</div>'
                    html += row_words.passage_html(words, block, count)
                st.html(html)
        exports.chart_foot(
            f"worst-rows-{queries.label(shown.run.run_id)}",
            f"n = {len(worst)} of the audited rows · error relative to the row’s dense output · source: worst_row",
            worst.drop(columns=["lost_blocks", "lost_mass"]),
            "worst",
        )


def _show_row(layer: int, head: int, position: int) -> None:
    for name in ("at", "segment"):
        st.query_params.pop(name, None)
    lens.look_again()
    view.write(layer=layer, head=head, row=position, scope="head")


def _all_parts() -> None:
    st.query_params.pop("at", None)
