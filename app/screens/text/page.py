"""Text: the prompt's words, shaded by what heads read or lose of them; who reads a phrase; the worst audited rows."""

from __future__ import annotations

from html import escape

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.screens.text import find, find_card, lens, lines_card, selection, side
from routesparse.app.screens.text.selection import BELOW, CLICKS, SCOPES, SHADES, Shown
from routesparse.app.screens.text.token_lines import Lines
from routesparse.app.shell import address, boundary, navigate, new_run_address, run_header, switch, view
from routesparse.app.shell.access import access
from routesparse.app.ui import design, elements, exports, states
from routesparse.app.unit import row_words
from routesparse.engine.errors import InputError
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries, word_queries
from routesparse.engine.store.block_shares import BlockShares, block_shares
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.word_queries import Words

_WORST = 4


@address.names("run layer head segment batch tour row at find scope shade below click")
def render() -> None:
    """Draw the page."""
    store = access().store
    run = run_header.open_run(store, "Text")
    if run is None:
        return
    batch_index = view.number("batch", run.batch) or 0
    worst = word_queries.worst_rows(store, run.run_id, batch_index, _WORST)
    at = _picked(store, run, worst, batch_index)
    run_header.header(store, run, "Text" if at is None else f"Text: layer {at[0]}, head {at[1]}", at)
    if at is None:
        states.undecided(
            run.routed,
            [
                f"{run.tokens:,} tokens are below break-even: dense attention ran, and every head reads every word. "
                "Analyse a longer prompt, or run it again with break-even 0."
            ],
        )
        return
    segment = view.number("segment", run.segments) if run.segments > 1 else None
    try:
        shares = block_shares(store, run.run_id, segment, batch_index)
    except InputError as error:
        states.field_error(f"{error}.")
        shares = None
    shades = list(SHADES) if shares is not None and shares.lost is not None else ["reads"]
    shown = Shown(
        run,
        at,
        segment,
        batch_index,
        switch.chosen("scope", SCOPES),
        switch.chosen("shade", shades),
        row_words.wanted(run),
        int(switch.chosen("below", BELOW)) / 100,
        switch.chosen("click", CLICKS),
    )
    words = word_queries.words(store, run.run_id) if batch_index == 0 else None
    _missing(store, run, shares, words)
    drawn = lines_card.of_token(store, shown)
    left, right = st.columns([1.95, 1], gap="small")
    with left:
        found, parts = _text_card(shown, words, shares, drawn)
        if shown.row is not None:
            lines_card.card(store, shown, words, drawn)
    with right:
        side.heads_card(shown, shares, found, parts)
        unit = queries.Unit(run.run_id, *at, shown.segment or 0, batch_index)
        navigate.link("Show this head on the map", "map", **view.address_of(store, unit))
        side.worst_card(shown, worst, words)


def _picked(store: OwnerView, run: RunRow, worst: pd.DataFrame, batch_index: int) -> tuple[int, int] | None:
    """The head that the address names, else the one with the worst audited row, else what the map would show first."""
    layer, head = view.number("layer", run.layers), view.number("head", run.heads)
    if layer is not None and head is not None:
        first = (layer, head)
    elif len(worst):
        first = (int(worst["layer"].iloc[0]), int(worst["head"].iloc[0]))
    else:
        choices = queries.choices(store, run.run_id, 0, batch_index)
        if choices.empty:
            return None
        first = view.first_pick(choices)
    return (first[0] if layer is None else layer, first[1] if head is None else head) if run.routed else None


def _missing(store: OwnerView, run: RunRow, shares: BlockShares | None, words: Words | None) -> None:
    """Say what this run did not record, and what to do."""
    lines = []
    if words is None:
        lines.append(row_words.NO_TEXT)
    if shares is None:
        lines.append(
            "What its heads read of each key block was not recorded, or is damaged. Analyse the prompt again with "
            "audit “rows”."
        )
    elif shares.source == "probe" and run.sparse_units:
        why = "It was not audited" if run.audit_depth == "none" else "It was audited before this page existed"
        lines.append(
            f"{why}: what heads read is known from the probe’s sampled rows only, and not what they lost. Analyse the "
            "prompt again with audit “rows” to see lost attention and the worst rows."
        )
    if lines:
        with st.container(key="text-missing", horizontal=True, vertical_alignment="center", gap="medium"):
            st.html("".join(f'<div class="rs-sub">{escape(line)}</div>' for line in lines), width="stretch")
            same = {
                **new_run_address.of_run(run),
                "from": queries.short_id(store, run.run_id),
                "audit": "rows",
            }
            navigate.link("Analyse again", "new", **same)


def _text_card(
    shown: Shown, words: Words | None, shares: BlockShares | None, drawn: Lines | None
) -> tuple[find.Found, selection.Parts]:
    """The search, the text and what was found; also what the other cards speak of."""
    run = shown.run
    found = find.Found()
    parts: selection.Parts = []
    if words is None and shares is None:
        return found, parts
    with elements.card("text"):
        if shares is not None:
            _controls(shown, shares)
        if words is not None:
            found = find_card.field(run, words)
            parts = selection.occurrences(found, words)
        shade = _shade(shown, shares)
        if words is not None:
            marks = _marks(shown, words, found, drawn)
            boundary.timed(_lens, None)(shown, words, shade, marks)
        else:
            st.html(
                '<div class="rs-unknown">not kept: what is read of each key block is in the file under Save</div>'
            )
        if shares is not None:
            st.html(lens.legend(design.current_theme(), shade, drawn is not None))
            _foot(shown, shares, shade)
    if words is not None and parts:
        find_card.occurrence_list(run, words, found, parts, shares, shown.below)
    chosen = selection.passage(-(-run.tokens // run.block_k))
    return found, parts if chosen is None else [chosen]


def _controls(shown: Shown, shares: BlockShares) -> None:
    with st.container(horizontal=True, gap="small", vertical_alignment="center", key="text-controls"):
        switch.buttons("scope", SCOPES, shown.scope)
        if shares.lost is not None:
            switch.buttons("shade", SHADES, shown.shade)
        switch.buttons("click", CLICKS, shown.click)
        if shown.run.segments > 1:
            switch.field(
                "segment",
                "Rows",
                list(range(shown.run.segments)),
                shown.segment,
                index=None,
                placeholder="rows of all segments",
                format_func=lambda s: f"rows of segment {s + 1}",
                label_visibility="collapsed",
                width=190,
            )


def _lens(shown: Shown, words: Words, shade: lens.Shade, marks: lens.Marks) -> None:
    """Scrolling draws this alone again; a click on a passage changes the whole page."""
    run = shown.run
    label = (
        f"The prompt’s text, {run.tokens:,} tokens, shaded by {SHADES[shown.shade].lower()}, {shown.name}; Enter asks "
        "who reads the passage at the top"
    )
    lens.show(
        words, (run.run_id, run.tokens, run.block_k), shade, marks, label, lambda: _take_click(shown, words)
    )
    if st.session_state.pop("text-changed", False):
        st.rerun(scope="app")


def _take_click(shown: Shown, words: Words) -> None:
    """A passage to ask who reads it, or a token to see what it reads."""
    found = lens.picked()
    if found is None:
        return
    cell, character = found
    if shown.click == "reads":
        lines_card.take(shown, words, character)
    else:
        pool = st.session_state.get("text-pool", 1)
        view.write(at=f"{cell * pool}-{(cell + 1) * pool - 1}")
    st.session_state["text-changed"] = True


def _shade(shown: Shown, shares: BlockShares | None) -> lens.Shade:
    """Of the head, the mean of its layer, or of all."""
    run = shown.run
    if shares is None:
        nothing = np.full(-(-run.tokens // run.block_k), np.nan)
        return lens.Shade(nothing, nothing, None, None, 1, False, shown.below)
    st.session_state["text-pool"] = shares.pool

    def scoped(values: np.ndarray | None) -> np.ndarray | None:
        if values is None:
            return None
        if shown.scope == "head":
            return np.asarray(values[shown.at])
        part = values[shown.at[0]] if shown.scope == "layer" else values.reshape(-1, values.shape[-1])
        return selection.mean(part, 0)

    reads, mass, lost = scoped(shares.reads), scoped(shares.mass), scoped(shares.lost)
    assert reads is not None
    if shown.shade != "lost" or lost is None:
        return lens.Shade(reads, reads, mass, lost, shares.pool, False, shown.below)
    most = float(np.nanmax(lost)) if np.isfinite(lost).any() else 0.0
    # Square roots, so that faint losses show; full colour is the most that one cell loses.
    return lens.Shade(np.sqrt(lost / (most or 1.0)), reads, mass, lost, shares.pool, True, shown.below, most)


def _marks(shown: Shown, words: Words, found: find.Found, drawn: Lines | None) -> lens.Marks:
    """What was found, the passage that was picked, the row and what it lost; and which of them to show first."""
    spans = [(int(start), int(end), lens.FOUND) for start, end in found.spans]
    go = spans[0][0] if spans else None
    ends: tuple[int, list[tuple[int, float, bool]]] | None = None
    if drawn is not None:
        here = words.span_of_token(drawn.position, shown.run.block_k)
        go, ends = here[0], (here[0], [])
        spans.append((*here, lens.ROW))
        for line in drawn.drawn:
            start, end = words.span_of_token(line.first, shown.run.block_k, line.tokens)
            spans.append((start, end, lens.LOST if line.is_dropped else lens.READ))
            ends[1].append((start, line.share, line.is_dropped))
    chosen = selection.passage(len(words.block_starts) - 1)
    if chosen is not None:
        span = words.span_of_block(chosen[0], chosen[1] - chosen[0] + 1)
        spans.append((*span, lens.PICKED))
        go = span[0]
    return lens.Marks(spans, go, ends)


def _foot(shown: Shown, shares: BlockShares, shade: lens.Shade) -> None:
    run, cells = shown.run, len(shade.reads)
    rows = pd.DataFrame(
        {
            "key_block": np.arange(cells) * shares.pool,
            "blocks": shares.pool,
            "read_by_later_rows": shade.reads,
            "attention": np.nan if shade.mass is None else shade.mass,
            "attention_lost": np.nan if shade.lost is None else shade.lost,
        }
    )
    source = "block_reads" if shares.source == "audit" else "masks in probe.parquet, sampled rows"
    most = "" if shares.coarse == 1 else f", at most: {shares.coarse} cells were recorded as one"
    of = "all segments" if shown.segment is None else f"segment {shown.segment + 1}"
    exports.chart_foot(
        f"text-{queries.label(run.run_id)}-{shown.name.replace(', ', '-').replace(' ', '-')}",
        f"n = {cells:,} cells of {shares.pool * run.block_k} tokens, {shown.name}, rows of {of} · read: share of pairs "
        f"of a later body row and a key that the plan reads{most} · source: {source} of run "
        f"{queries.label(run.run_id)}",
        rows,
        "text",
    )
