"""Routing map: which head took which pattern on this prompt, why, and what it cost, layer by layer."""

from __future__ import annotations

import json

import pandas as pd
import streamlit as st

from routesparse.app.screens.routing_map import (
    answer_card,
    map_component,
    map_figure,
    map_legend,
    prompt_card,
    sprite_figure,
)
from routesparse.app.shell import navigate, run_header, view
from routesparse.app.shell.access import access
from routesparse.app.shell.view import METRICS, View
from routesparse.app.ui import design, exports, facts, glossary, layer_words, numbers, states
from routesparse.app.unit import cards
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.store.sprite import probe_sprite


def render() -> None:
    """Draw the page."""
    store = access().store
    run = run_header.open_run(store, "Routing map")
    if run is None:
        return
    shown = view.read(run)
    absent = view.missing(run)
    choices = queries.choices(store, run.run_id, shown.segment, shown.batch_index)
    named = None if shown.layer is None or shown.head is None else (shown.layer, shown.head)
    run_header.header(store, run, "Routing map", named)
    if absent:
        states.note(absent)
    if choices.empty:
        below = [
            f"{run.tokens:,} tokens are below break-even, the length from which routing is predicted to pay: dense "
            "attention ran untouched, without a probe.",
            f"Prefill took {numbers.millis(run.total_ms)}. Analyse a longer prompt to see routing, "
            "or run it again with break-even 0.",
        ]
        states.undecided(run.routed, below)
        return
    layers = queries.layers(store, run.run_id)
    picked = view.first_pick(choices)
    picked = (
        shown.layer if shown.layer is not None else picked[0],
        shown.head if shown.head is not None else picked[1],
    )
    unit = queries.Unit(run.run_id, *picked, shown.segment, shown.batch_index)
    candidates = queries.candidates(store, unit)
    found = choices[(choices["layer"] == picked[0]) & (choices["head"] == picked[1])]
    _kpis(run, choices, layers)
    left, right = st.columns([2.1, 1], gap="small")
    with left:
        _map_card(store, run, shown, choices, layers, picked)
        cards.candidate_card(store, run, unit, candidates)
        prompt_card.card(store, run, shown.segment, shown.batch_index)
    with right:
        if found.empty:
            states.empty("This unit was not routed", ["Pick another cell of the map."])
            return
        cards.reason_card(run, found.iloc[0], picked, queries.fallbacks(store, unit), candidates, layers)
        navigate.link("Open this head", "head", **view.address_of(store, unit))
        navigate.link("Read the text as this head does", "text", **view.text_of(store, unit))
        cards.probe_card(store, run, unit, found.iloc[0])
        cards.scatter_card(store, run, unit, found.iloc[0], candidates)
        cards.audit_card(found.iloc[0])
        answer_card.card(store, run, shown.batch_index)


def _kpis(run: RunRow, choices: pd.DataFrame, layers: pd.DataFrame) -> None:
    """Six figures of the whole run; the certified one is of the segment shown."""
    sparse = choices[choices["pattern"] != "dense"]
    # Of lost decisions nobody knows whether they were certified.
    is_whole = int(layers["units"].sum()) >= run.units
    certified = float((~sparse["uncertified"]).mean()) if len(sparse) and is_whole else None
    missed = int(layers["uncertified"].sum())
    boxes = [
        ("Causal area kept", numbers.share(run.density), "mean over units", "kept"),
        (
            "Prefill",
            numbers.millis(run.total_ms) if run.speedup is None else numbers.times(run.speedup),
            "dense not measured"
            if run.speedup is None
            else f"as fast as dense: {numbers.millis(run.total_ms)} for {numbers.millis(run.dense_ms)}, each measured "
            "once",
            "speedup",
        ),
        (
            "Dense by fallback",
            numbers.share(run.fallback_share),
            f"{run.dense_fallback_units:,} of the run’s {run.units:,} units · {run.expanded_units:,} expanded",
            "fallback",
        ),
        (
            f"Certified ≥ {numbers.threshold(run.tau)}",
            numbers.share_passed(certified),
            "of sparse units, each alone",
            "certificate",
        )
        if run.tau_layer is None
        else _layers_box(run, layers, certified),
        answer_card.box(run),
        ("Output error", numbers.mass(run.mean_error, 4), "relative, audited mean", "error"),
    ]
    st.html(facts.boxes_html(boxes))
    if layers["layer_uncertified"].any():
        told = layer_words.uncertified(layers.assign(tau_layer=run.tau_layer), layers["layer_uncertified"])
        off = "" if json.loads(run.config_json).get("fallback", True) else " Fallback was off."
        states.field_error(f"{told}. That its mean mass reaches τ layer is not certified.{off}")
    if missed:
        states.field_error(f"{numbers.uncertified(missed, run.units)}: {glossary.TERMS['uncertified']}")


def _layers_box(run: RunRow, layers: pd.DataFrame, heads_certified: float | None) -> tuple[str, ...]:
    """How many layers reach tau_layer; the share of heads above their floor is no more than a note."""
    claimed = layers["lower_mass"].dropna()
    uncertified = layers["layer_uncertified"]
    shown = layers["lower_mass"].notna() | uncertified
    least = "no layer is sparse" if claimed.empty else f"least {numbers.bound(claimed.min())}"
    heads = (
        ""
        if heads_certified is None
        else f" · {numbers.share_passed(heads_certified)} of heads above their floor"
    )
    value = (
        f"{int(shown.sum() - uncertified.sum())} of {int(shown.sum())}" if shown.any() else "does not apply"
    )
    return (
        f"Layers certified ≥ {numbers.threshold(run.tau_layer)}",
        value,
        f"{least}{heads}",
        "layer_certificate",
    )


def _map_card(
    store: OwnerView,
    run: RunRow,
    shown: View,
    choices: pd.DataFrame,
    layers: pd.DataFrame,
    picked: tuple[int, int],
) -> None:
    theme = design.current_theme()
    with st.container(border=True, key="card-map", gap="xsmall"):
        _metric_selector(shown)
        shape = run.layers, run.heads
        sprite = None
        if shown.metric == "probe":
            sprite = probe_sprite(store, run.run_id, shown.segment, shown.batch_index, shape)
        picture = None if sprite is None else sprite_figure.data_uri(sprite, theme)
        # A click changes the ring alone.
        drawing, cells = store.made(
            "map",
            [shown.segment, shown.batch_index, shown.metric, theme.name],
            lambda: map_figure.drawing(
                choices, layers, shown.metric, picked, theme, shape, picture, run.tau_layer
            ),
            of=[run.run_id],
        )
        st.html(
            '<div class="rs-note" style="display:flex;flex-wrap:wrap;gap:0 18px"><span>layer ↓ head →</span>'
            f'<span style="margin-left:auto">{map_legend.margin(layers, run.segments > 1, theme)}</span></div>'
        )
        if run.tau_layer is not None:
            st.html(
                f'<div class="rs-note">Beside the map: certified mean mass of the layer{glossary.mark("tau_layer")} '
                f"(must reach {numbers.threshold(run.tau_layer)}; ↑: levels that the layer climbed for it; "
                f"–: all dense{'; red: ran uncertified' if layers['layer_uncertified'].any() else ''})</div>"
            )
        map_component.show({**drawing, "picked": list(picked)}, _take_click)
        if shown.metric == "pattern":
            st.html(map_legend.pattern_legend(choices, theme, run.layers * run.heads))
        elif sprite is not None:
            st.html(sprite_figure.legend(sprite, theme))
        else:
            st.html(map_legend.scale_legend(cells, shown.metric, theme) + map_legend.key(choices))
            if shown.metric == "audited_error" and run.audit_depth == "none":
                again = {"from": queries.short_id(store, run.run_id), "audit": "rows"}
                navigate.link("Not audited: run it again with audit rows", "new", **again)
        run_header.segment_selector(run, shown, choices)
        exports.chart_foot(
            f"routing-map-{queries.label(run.run_id)}-segment-{shown.segment}",
            f"n = {len(choices):,} units of segment {shown.segment + 1} · colour: {cells.unit} · "
            f"source: head_choice, audit and layer_run of run {queries.label(run.run_id)}",
            choices,
            "map",
            chart="map",
        )


def _metric_selector(shown: View) -> None:
    if st.session_state.get("metric-choice") != shown.metric:
        st.session_state["metric-choice"] = shown.metric
    st.segmented_control(
        "Colour",
        list(METRICS),
        format_func=METRICS.__getitem__,
        key="metric-choice",
        required=True,
        label_visibility="collapsed",
        on_change=lambda: view.write(metric=st.session_state["metric-choice"]),
    )


def _take_click() -> None:
    """A click on a cell becomes part of the address."""
    cell = map_component.picked()
    if cell is not None:
        view.write(layer=cell[0], head=cell[1])
