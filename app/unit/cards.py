"""The cards of one routing unit on the routing map."""

from __future__ import annotations

from dataclasses import astuple

import pandas as pd
import streamlit as st

from routesparse.app.shell import switch, view
from routesparse.app.ui import design, elements, exports, glossary, plot, reason_words, states
from routesparse.app.unit import charts, masks, panel, probe, row_words, zoom
from routesparse.engine.errors import InputError
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames, queries, word_queries
from routesparse.engine.store.owner_view import OwnerView

_FULL_HEIGHT = 420


def reason_card(run: RunRow, choice: pd.Series, picked: tuple[int, int]) -> None:
    """Why this unit took this pattern; Shift and an arrow key move to a neighbour."""
    with elements.card("reason", panel.title(choice)):
        layer, head = picked
        moves: list[tuple[str, str, int, int, bool]] = [
            ("head −", "Left", layer, head - 1, head > 0),
            ("head +", "Right", layer, head + 1, head < run.heads - 1),
            ("layer −", "Up", layer - 1, head, layer > 0),
            ("layer +", "Down", layer + 1, head, layer < run.layers - 1),
        ]
        with st.container(horizontal=True, gap="xsmall", key="move-row"):
            for label, key, to_layer, to_head, possible in moves:
                st.button(
                    label,
                    key=f"move-{key}",
                    shortcut=f"Shift+{key}",
                    disabled=not possible,
                    on_click=view.write,
                    kwargs={"layer": to_layer, "head": to_head},
                )
        elements.sub(reason_words.shown(choice["reason"]))
        st.html(panel.facts_html(choice, run))


def candidate_card(store: OwnerView, run: RunRow, unit: queries.Unit, candidates: pd.DataFrame) -> None:
    """Every candidate with its numbers and why it was not chosen."""
    with elements.card("candidates", f"Candidates of layer {unit.layer}, head {unit.head}"):
        if candidates.empty:
            elements.sub("Not recorded for this run.")
            return
        st.html(store.made("candidates", [unit], lambda: panel.candidates_html(candidates), of=[run.run_id]))
        exports.chart_foot(
            f"candidates-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}",
            f"n = {len(candidates)} candidates · masses as share of 1 · certified mass: – where no certificate was "
            f"tested · source: candidate_score and fallback_event of run {queries.label(run.run_id)}",
            candidates,
            "candidates",
        )


def probe_card(
    store: OwnerView, run: RunRow, unit: queries.Unit, choice: pd.Series, candidates: pd.DataFrame
) -> None:
    """The float16 probe of the bundle, while it is there, with the mask of the chosen or any other candidate."""
    with elements.card("probe"):
        heatmap = _full_probe(store, unit) or queries.probe_thumbnail(store, unit)
        if heatmap is None:
            st.html('<div class="rs-h">Probe</div><div class="rs-sub">Not recorded for this unit.</div>')
            return
        window = zoom.wanted() if heatmap.row_pool == 1 else None
        part = None if window is None else zoom.cut(heatmap, window)
        _probe_title(heatmap, choice, run.block_k, part)
        position = row_words.wanted(run)
        if position is not None and position not in heatmap.positions:
            elements.sub(f"The row at token {position:,} is no row of the probe: see below.")
        heatmap = part or heatmap
        window = None if part is None else window
        mask = None
        if heatmap.levels is None:
            elements.sub("What each budget reads is not stored for this run.")
        elif len(candidates):
            mask = _mask_choice(store, unit, heatmap, candidates, run.block_k, window)
        _probe_picture(store, run, unit, heatmap, window, mask)
    if position is not None:
        loss = row_words.of_row(store, run, unit, candidates, position)
        row_words.card(store, run, unit, loss, word_queries.words(store, run.run_id))


def _full_probe(store: OwnerView, unit: queries.Unit) -> queries.Heatmap | None:
    """The bundle's probe; None where it is gone, and where it can't be read, which the card then says."""
    try:
        return queries.probe_full(store, unit)
    except InputError as error:
        states.field_error(f"{error}.")
        return None


def _mask_choice(
    store: OwnerView,
    unit: queries.Unit,
    heatmap: queries.Heatmap,
    candidates: pd.DataFrame,
    block: int,
    window: zoom.Window | None,
) -> masks.Mask | None:
    """Whose mask lies over the probe; it lives in the address."""
    chosen = int(candidates.loc[candidates["chosen"], "candidate"].iloc[0])
    names = {int(row.candidate): masks.candidate_name(row) for row in frames.rows(candidates)}
    names[chosen] = f"chosen: {names[chosen]}"
    is_hidden = st.query_params.get("mask") == "none"
    shown = chosen if is_hidden else view.number("mask", len(names), chosen)
    look = {"index": None, "format_func": names.__getitem__, "placeholder": "none", "width": 300}
    whose = "".join(f"-{part}" for part in astuple(unit))
    switch.field("mask", "Mask of", list(names), None if is_hidden else shown, whose, "none", **look)
    if is_hidden:
        return None
    return store.made(
        "mask",
        [unit, window, shown],
        lambda: masks.mask(heatmap, candidates, block, int(shown or 0)),
        of=[unit.run_id],
    )


def _probe_title(
    heatmap: queries.Heatmap, choice: pd.Series, block: int, part: queries.Heatmap | None
) -> None:
    """part: what is shown of the heatmap; None for all of it."""
    # Not from the picture: its last column may stand for fewer blocks than the others.
    blocks = -(-int(choice["first_token"] + choice["tokens"]) // block)
    told = f"{heatmap.probe_rows:,} rows × {blocks:,} key blocks"
    if part is not None:
        told = f"{_part(part)} of {told}"
    st.html(f'<div class="rs-h">Probe, {told}{glossary.mark("probe")}</div>')


def _probe_picture(
    store: OwnerView,
    run: RunRow,
    unit: queries.Unit,
    heatmap: queries.Heatmap,
    window: zoom.Window | None,
    mask: masks.Mask | None,
) -> None:
    """window: what part of the probe the heatmap is, None for the whole."""
    theme = design.current_theme()
    shown = probe.limited(heatmap)
    position, whole = row_words.wanted(run), window is None
    whose = None if mask is None else mask.candidate
    name = f"probe-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}"
    picture = store.made(
        "probe",
        [unit, window, shown.mass.shape, shown.block_pool, whose, position, theme.name],
        lambda: probe.figure(shown, theme, run.block_k, _FULL_HEIGHT, mask, position),
        of=[run.run_id],
    )
    zoom.show("probe", picture, shown, run.block_k)
    with st.container(horizontal=True, vertical_alignment="center", gap="small", key="quiet-zoom"):
        st.html(probe.legend(shown, theme, mask, not whole), width="stretch")
        if not whole:
            st.button("Whole picture", key="whole-picture", type="tertiary", on_click=zoom.back)
    source = "probe_meta, 8-bit thumbnail" if heatmap.row_pool > 1 else "probe.parquet, float16"
    exports.chart_foot(
        name,
        f"n = {heatmap.probe_rows} rows, mass per key block of {run.block_k} tokens, square-root scale · "
        f"drag to zoom, click for a row’s words · source: {source}",
        probe.long_rows(heatmap),
        "probe",
        chart="probe",
    )


def _part(shown: queries.Heatmap) -> str:
    rows, columns = shown.mass.shape
    end = shown.first_block + columns * shown.block_pool
    last_row = shown.first_row + rows
    return f"rows {shown.first_row + 1:,} to {last_row:,}, key blocks {shown.first_block:,} to {end - 1:,}"


def scatter_card(
    store: OwnerView, run: RunRow, unit: queries.Unit, choice: pd.Series, candidates: pd.DataFrame
) -> None:
    """Risk against predicted time."""
    candidates = candidates.dropna(subset=["risk", "kernel_us"])
    if candidates.empty:
        return
    with elements.card("scatter", "Risk against predicted time"):
        name = f"risk-time-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}"
        threshold, theme = panel.gate_threshold(choice, run), design.current_theme()
        drawn = store.made(
            "scatter",
            [unit, theme.name],
            lambda: charts.scatter(
                candidates, threshold, run.tau, theme, "1 − τ" if run.tau_layer is None else "1 − τ head"
            ),
            of=[run.run_id],
        )
        plot.show(drawn, "scatter", "Candidates, risk against predicted time")
        exports.chart_foot(
            name,
            "Ring: the choice. Filled: keeps the mass that is asked, g ≥ λ. Lines: risk where g is just λ, and "
            f"{'τ' if run.tau_layer is None else 'τ head'}. "
            f"n = {len(candidates)} candidates · source: candidate_score of run {queries.label(run.run_id)}",
            candidates,
            "scatter",
            chart="scatter",
        )
