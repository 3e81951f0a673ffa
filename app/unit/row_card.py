"""The card of one row of one unit: its text, and the passages whose attention it lost, ranked."""

from __future__ import annotations

from collections.abc import Callable

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, view
from routesparse.app.ui import exports, numbers
from routesparse.app.unit import row_words
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries, word_queries
from routesparse.engine.store.owner_view import OwnerView


def wanted(run: RunRow) -> int | None:
    """The token of the row that the address names."""
    return view.number("row", run.tokens)


def card(
    store: OwnerView,
    run: RunRow,
    unit: queries.Unit,
    loss: row_words.RowLoss | None,
    words: word_queries.Words | None,
    on_show: Callable[[int, int], None] | None = None,
) -> None:
    """Draw it. on_show: what a passage's button does, with its first KV block and how many; None: they are words only,
    and a link leads to the page Text."""
    position = wanted(run)
    with st.container(border=True, key="card-row", gap="xsmall"):
        if loss is None:
            st.html(
                f'<div class="rs-h">Row at token {position:,}</div><div class="rs-sub">Neither the probe nor the audit '
                f"recorded this row of layer {unit.layer}, head {unit.head}. Click a row of the probe’s picture on the "
                "map, or one of the worst audited rows.</div>"
            )
            return
        st.html(
            f'<div class="rs-h">Row of layer {unit.layer}, head {unit.head}: {row_words.headline(loss)}</div>'
            + row_words.context_html(words, loss.position, run.block_k)
        )
        if not loss.passages:
            st.html(
                '<div class="rs-sub">It reads everything that it attends to: nothing recorded was lost.</div>'
            )
        else:
            least = "" if loss.exact or loss.passages[0][1] == 1 else ", each at least"
            st.html(f'<div class="rs-sub">It lost most of its attention on{least}:</div>')
        for rank, (block, blocks, share) in enumerate(loss.passages, start=1):
            name = f"{rank}. {row_words.passage_name(run, block, blocks)}: {numbers.share(share, 2)}"
            with st.container(key=f"goto-passage-{rank}"):
                if on_show is None:
                    st.html(f'<div class="rs-note">{name}</div>')
                else:
                    st.button(
                        name, key=f"passage-{rank}", type="tertiary", on_click=on_show, args=(block, blocks)
                    )
                st.html(row_words.passage_html(words, block, blocks))
        if words is None:
            st.html(f'<div class="rs-sub">{row_words.NO_TEXT}</div>')
        place = view.address_of(store, unit)
        if on_show is None:
            navigate.link("Show in the text", "text", **place, row=loss.position)
        else:
            navigate.link("Show in the probe’s picture", "map", **place, row=loss.position)
        rows = pd.DataFrame(loss.passages, columns=["key_block", "blocks", "lost_mass"])
        exports.chart_foot(
            f"row-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}-token-{loss.position}",
            f"n = {len(rows)} passages of {run.block_k if rows.empty else int(rows['blocks'].max()) * run.block_k} "
            f"tokens · share of the row’s attention · source: {row_words.describe(loss)}",
            rows,
            "row",
        )
