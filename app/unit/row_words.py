"""One row of one unit, in words and as a card: the text at its token, and the passages whose attention it lost.

An audited worst row is exact. Any recorded row of the probe is known from the probe's picture and the chosen plan's
mask, whose cells may be several KV blocks. The prompt's text is shown escaped, never as markup.
"""

from __future__ import annotations

from dataclasses import dataclass
from html import escape

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, view
from routesparse.app.ui import elements, exports, numbers
from routesparse.app.unit import masks
from routesparse.engine.export.plain_text import visible
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries, word_queries
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.word_queries import Words

MOST_PASSAGES = 8
_AROUND = 70  # characters before and after a token
_LONGEST = 170  # characters of a passage
NO_TEXT = "The text of this prompt was not kept. Analyse it again with “Keep the text” switched on to see its words."


@dataclass(frozen=True)
class RowLoss:
    """What one row lost. passages: (first KV block, KV blocks, share of the row's attention), most first."""

    position: int
    mass: float | None  # retained; None where it was not measured
    error: float | None  # relative output error; only of audited rows
    passages: list[tuple[int, int, float]]
    exact: bool


def of_row(
    store: OwnerView, run: RunRow, unit: queries.Unit, candidates: pd.DataFrame, position: int
) -> RowLoss | None:
    """The row at a token: from the audit where it is among the worst, else from the probe; None where in neither."""
    worst = word_queries.worst_rows(
        store, run.run_id, unit.batch_index, 64, unit.layer, unit.head, unit.segment
    )
    found = worst[worst["position"] == position]
    if len(found):
        return of_worst(found.iloc[0])
    heatmap = queries.probe_full(store, unit)
    if heatmap is None or heatmap.levels is None or candidates.empty:
        return None
    rows = np.flatnonzero(heatmap.positions == position)
    if not len(rows):
        return None
    chosen = int(candidates.loc[candidates["chosen"], "candidate"].iloc[0])
    return _probed(heatmap, masks.reads(heatmap, candidates, chosen), int(rows[0]))


def of_worst(row: pd.Series) -> RowLoss:
    """A row of word_queries.worst_rows."""
    passages = [(int(b), 1, float(m)) for b, m in zip(row["lost_blocks"], row["lost_mass"], strict=True)]
    return RowLoss(int(row["position"]), float(row["mass"]), float(row["error"]), passages, True)


def _probed(heatmap: queries.Heatmap, reads: np.ndarray, row: int) -> RowLoss:
    lost = np.where(masks.cells_read(heatmap, reads)[row], 0.0, heatmap.mass[row])
    top = np.argsort(-lost, kind="stable")[:MOST_PASSAGES]
    pool = heatmap.block_pool
    passages = [(int(cell) * pool, pool, float(lost[cell])) for cell in top if lost[cell] > 0]
    # A cell of several blocks holds the largest of their masses: their sum is not known.
    mass = float(1 - lost.sum()) if pool == 1 else None
    return RowLoss(int(heatmap.positions[row]), mass, None, passages, False)


def nearest(
    store: OwnerView, unit: queries.Unit, candidates: pd.DataFrame, position: int, body_end: int
) -> tuple[RowLoss, list[tuple[int, int, float]]] | None:
    """The recorded row of the probe nearest to a token: what it lost, and the passages that it read. None without a
    probe. body_end: rows from there on are dense and read everything."""
    heatmap = queries.probe_full(store, unit)
    if heatmap is None or heatmap.levels is None or candidates.empty:
        return None
    row = int(np.abs(heatmap.positions - position).argmin())
    chosen = int(candidates.loc[candidates["chosen"], "candidate"].iloc[0])
    reads = masks.reads(heatmap, candidates, chosen) | (heatmap.positions >= body_end)[:, None]
    kept = np.where(masks.cells_read(heatmap, reads)[row], heatmap.mass[row], 0.0)
    top = np.argsort(-kept, kind="stable")[: 2 * MOST_PASSAGES]
    pool = heatmap.block_pool
    read = [(int(cell) * pool, pool, float(kept[cell])) for cell in top if kept[cell] > 0]
    return _probed(heatmap, reads, row), read


def describe(loss: RowLoss) -> str:
    """Where a row's loss comes from, for the line under it."""
    if loss.exact:
        return "worst_row, the audited rows of this head whose output is farthest off"
    return "probe.parquet, a row of the probe and what the chosen plan reads of it"


def headline(loss: RowLoss) -> str:
    """The row in figures."""
    parts = [f"token {loss.position:,}"]
    if not numbers.is_missing(loss.error):
        parts.append(f"error {numbers.mass(loss.error)}")
    if not numbers.is_missing(loss.mass):
        parts.append(f"keeps {numbers.share(loss.mass)} of its attention")
    return " · ".join(parts)


def context_html(words: Words | None, position: int, block_tokens: int) -> str:
    """The text around a token, the token itself marked."""
    if words is None:
        return ""
    start, end = words.span_of_token(position, block_tokens)
    before, token, after = (
        escape(visible(part, " "))
        for part in (
            words.text[max(0, start - _AROUND) : start],
            words.text[start:end][:_LONGEST],
            words.text[end : end + _AROUND],
        )
    )
    return f'<div class="rs-words">…{before}<mark><bdi>{token}</bdi></mark>{after}…</div>'


def passage_html(words: Words | None, block: int, blocks: int) -> str:
    """The text of some KV blocks, cut at what a person reads."""
    if words is None:
        return ""
    start, end = words.span_of_block(block, blocks)
    text = words.text[start:end]
    cut = escape(visible(text[:_LONGEST], " ")) + ("…" if len(text) > _LONGEST else "")
    return f'<div class="rs-words">{cut}</div>'


def passage_name(run: RunRow, block: int, blocks: int) -> str:
    """The tokens of some KV blocks: "tokens 640–703"."""
    first = block * run.block_k
    return f"tokens {numbers.tokens(first, min(blocks * run.block_k, run.tokens - first))}"


def wanted(run: RunRow) -> int | None:
    """The token of the row that the address names."""
    return view.number("row", run.tokens)


def card(
    store: OwnerView, run: RunRow, unit: queries.Unit, loss: RowLoss | None, words: Words | None
) -> None:
    """Draw it."""
    position = wanted(run)
    with elements.card("row"):
        if loss is None:
            st.html(
                f'<div class="rs-h">Row at token {position:,}</div><div class="rs-sub">Neither the probe nor the audit '
                f"recorded this row of layer {unit.layer}, head {unit.head}. Click a row of the probe’s picture on the "
                "map, or one of the worst audited rows.</div>"
            )
            return
        st.html(
            f'<div class="rs-h">Row of layer {unit.layer}, head {unit.head}: {headline(loss)}</div>'
            + context_html(words, loss.position, run.block_k)
        )
        if not loss.passages:
            elements.sub("It reads everything that it attends to: nothing recorded was lost.")
        else:
            least = "" if loss.exact or loss.passages[0][1] == 1 else ", each at least"
            elements.sub(f"It lost most of its attention on{least}:")
        for rank, (block, blocks, share) in enumerate(loss.passages, start=1):
            name = f"{rank}. {passage_name(run, block, blocks)}: {numbers.share(share, 2)}"
            elements.note(name)
            st.html(passage_html(words, block, blocks))
        if words is None:
            elements.sub(NO_TEXT)
        navigate.link("Show in the text", "text", **view.address_of(store, unit), row=loss.position)
        rows = pd.DataFrame(loss.passages, columns=["key_block", "blocks", "lost_mass"])
        exports.chart_foot(
            f"row-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}-token-{loss.position}",
            f"n = {len(rows)} passages of {run.block_k if rows.empty else int(rows['blocks'].max()) * run.block_k} "
            f"tokens · share of the row’s attention · source: {describe(loss)}",
            rows,
            "row",
        )
