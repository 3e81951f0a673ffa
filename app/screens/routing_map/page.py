"""Routing map: which pattern every head took, what that cost, and everything about the one that is chosen."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from routesparse.app.screens.routing_map import (
    answer_card,
    head_order,
    head_panel,
    head_prompts,
    head_scatter,
    map_figure,
)
from routesparse.app.shell import address, navigate, run_header, switch, view
from routesparse.app.shell.access import access
from routesparse.app.shell.view import LENSES, METRICS, View
from routesparse.app.ui import (
    browser_part,
    design,
    elements,
    exports,
    glossary,
    numbers,
    reason_words,
    states,
)
from routesparse.app.unit import cards, panel, shapes
from routesparse.engine.export import run_figures
from routesparse.engine.rows import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView

_map = browser_part.component(__file__, "map")  # one SVG, which reports clicks on cells
# What is shown of the chosen head, one at a time.
_DETAILS = {
    "probe": "Where it looked",
    "candidates": "Candidates",
    "certificates": "Certificates",
    "segments": "Segments",
    "prompts": "Other prompts",
}
# Of the figures at the top.
_TERMS = {
    "Predicted loss": "loss",
    "Causal area kept": "density",
    "Prefill": "speedup",
    "Dense by fallback": "fallback",
    "Mass not certified": "uncertified",
    "Next token": "answer",
    "Output error": "error",
}


@address.names("run layer head segment batch tour metric order x y brush over mask zoom row detail")
def render() -> None:
    """Draw the page."""
    store = access().store
    run = run_header.open_run(store, "Routing map")
    if run is None:
        return
    shown = view.read(run)
    choices = queries.choices(store, run.run_id, shown.segment, shown.batch_index)
    named = None if shown.layer is None or shown.head is None else (shown.layer, shown.head)
    run_header.header(store, run, "Routing map", named)
    if choices.empty:
        below = [
            f"{run.tokens:,} tokens are below break-even, the length from which routing is predicted to pay: dense "
            "attention ran untouched, without a probe.",
            f"Prefill took {numbers.millis(run.total_ms)}. Analyse a longer prompt to see routing, or route it anyway, "
            "with break-even 0: the link above.",
        ]
        states.undecided(run.routed, below)
        return
    decided = choices

    def read() -> tuple[pd.DataFrame, int, dict[str, str]]:
        found, cell = shapes.with_shapes(store, run, decided)
        return found, cell, head_scatter.offered(found)

    place = [shown.segment, shown.batch_index]
    choices, cell, figures = store.made("shapes", place, read, of=[run.run_id])
    layers = queries.layers(store, run.run_id)
    layer, head = named or view.first_pick(choices)
    layer = layer if shown.layer is None else shown.layer
    head = head if shown.head is None else shown.head
    unit = queries.Unit(run.run_id, layer, head, shown.segment, shown.batch_index)
    found = choices[(choices["layer"] == layer) & (choices["head"] == head)]
    candidates = queries.candidates(store, unit)
    # Of lost decisions nobody knows whether they were certified.
    is_whole = int(layers["units"].sum()) >= run.units
    missed = int(layers["uncertified"].sum()) if is_whole else None
    density = float(layers["body_density"].sum() / run.units) if is_whole else None
    told = run_figures.figures(run, density, missed, int(layers["layer_uncertified"].sum()))
    st.html(elements.boxes_html([(*box, _TERMS[box[0]]) for box in told]))
    left, right = st.columns([1.75, 1], gap="small")
    brush = head_scatter.read(choices, figures)
    if found.empty:
        with right:
            states.empty("This unit was not routed", ["Its layer runs dense. Pick another cell of the map."])
            answer_card.card(store, run, shown.batch_index)
        with left:
            _map_card(store, run, shown, choices, layers, (layer, head), cell, brush)
        return
    choice, own = found.iloc[0], layers[layers["layer"] == layer]
    # First what a click asks for: the map itself moves its ring alone.
    with right:
        cards.reason_card(run, choice, (layer, head))
        with st.container(horizontal=True, gap="medium"):
            in_text = view.text_of(store, unit)
            navigate.link("Read the text as this head does", "text", **in_text)
            navigate.link("Who reads which part", "text", **in_text, scope="all")
            navigate.link("Trust in this run", "trust", run=queries.short_id(store, run.run_id))
    with left:
        _map_card(store, run, shown, choices, layers, (layer, head), cell, brush)
    with right:
        head_scatter.card(store, run, choices, figures, brush, (layer, head))
    # A second row, so that a narrow window has the reason right below the map.
    left, right = st.columns([1.75, 1], gap="small")
    with right:
        answer_card.card(store, run, shown.batch_index)
    with left:
        details = {name: label for name, label in _DETAILS.items() if name != "segments" or run.segments > 1}
        detail = switch.chosen("detail", details)
        switch.buttons("detail", details, detail)
        if detail == "probe":
            cards.probe_card(store, run, unit, choice, candidates)
        elif detail == "candidates":
            cards.scatter_card(store, run, unit, choice, candidates)
            cards.candidate_card(store, run, unit, candidates)
        elif detail == "certificates":
            failed = panel.fallback_html(queries.fallbacks(store, unit), candidates)
            head_panel.claims_card(choice, run, None if own.empty else own.iloc[0], failed)
        elif detail == "segments":
            head_panel.segments_card(store, run, unit)
        else:
            head_prompts.card(store, unit, shown.metric)


def _map_card(
    store: OwnerView,
    run: RunRow,
    shown: View,
    choices: pd.DataFrame,
    layers: pd.DataFrame,
    picked: tuple[int, int],
    cell: int,
    brush: head_scatter.Brush,
) -> None:
    theme = design.current_theme()
    best, why = store.made(
        "opening", [shown.segment, shown.batch_index], lambda: head_order.opening(choices), of=[run.run_id]
    )
    metric = shown.metric or best
    orders = {
        name: label for name, label in head_order.ORDERS.items() if name != "loss" or head_order.lost(choices)
    }
    order = switch.chosen("order", orders)
    with elements.card("map"):
        _lenses(choices, metric)
        if shown.metric is None:
            elements.note(why)
        switch.buttons("order", orders, order)
        shape = run.layers, run.heads
        # A click changes the ring alone.
        drawing, cells = store.made(
            "map",
            [shown.segment, shown.batch_index, metric, theme.name, order],
            lambda: map_figure.drawing(choices, layers, metric, picked, theme, shape, run.tau_layer, order),
            of=[run.run_id],
        )
        by_layer = order == "layer"
        axes = "layer ↓ head →" if by_layer else "below each: layer·head"
        told = map_figure.margin(layers, run.segments > 1, theme) if by_layer else ""
        st.html(
            f'<div class="rs-note" style="display:flex;flex-wrap:wrap;gap:0 18px"><span>{axes}</span>'
            f'<span style="margin-left:auto">{told}</span></div>'
        )
        if run.tau_layer is not None and by_layer:
            st.html(
                f'<div class="rs-note">certified: the layer’s mean mass{glossary.mark("tau_layer")}, at least '
                f"{numbers.threshold(run.tau_layer)}{_signs(layers)}</div>"
            )
        here = choices.loc[(choices["layer"] == picked[0]) & (choices["head"] == picked[1]), "reason"]
        why = "".join(map(reason_words.shown, here))
        moved = {"picked": list(picked), "brushed": brush.cells(choices, run.heads), "why": why}
        _map(key="map", data={**drawing, **moved}, on_picked_change=_take_click)
        st.html(map_figure.legend(choices, cells, metric, theme))
        if metric == "shape":
            st.html(map_figure.reading(cell))
        if metric == "loss_nats" and choices["loss_nats"].isna().all():
            states.note(
                "Not measured: the predicted loss is split over heads only where the model is fitted."
            )
        if metric == "audited_error" and run.audit_depth == "none":
            again = {"from": queries.short_id(store, run.run_id), "audit": "rows"}
            navigate.link("Not audited: run it again with audit rows", "new", **again)
        run_header.segment_selector(run, shown, choices)
        exports.chart_foot(
            f"routing-map-{queries.label(run.run_id)}-segment-{shown.segment}",
            f"n = {len(choices):,} units{f' of segment {shown.segment + 1}' if run.segments > 1 else ''} · "
            f"colour: {cells.unit} · source: head_choice, audit, layer_run",
            choices,
            "map",
            chart="map",
        )


def _signs(layers: pd.DataFrame) -> str:
    """What the signs beside the layers' certificates mean, of those that are there."""
    told = {
        "↑: levels climbed for it": (layers["raised"] > 0).any(),
        "–: all dense": layers["lower_mass"].isna().any(),
        "red: ran uncertified": layers["layer_uncertified"].any(),
    }
    return "".join(f"; {sign}" for sign, there in told.items() if there)


def _lenses(choices: pd.DataFrame, metric: str) -> None:
    """The lenses that have something to show, the first of them as buttons."""

    def measured(name: str) -> bool:
        # Of a model that is not fitted nobody knows what a head's part of the loss is.
        return name == metric or name not in ("shape", "loss_nats") or bool(choices[name].notna().any())

    known = {name: label for name, label in METRICS.items() if measured(name)}
    first = {name: label for name, label in known.items() if name in LENSES}
    more = {name: label for name, label in known.items() if name not in LENSES}
    with st.container(horizontal=True, gap="small", vertical_alignment="center"):
        switch.buttons("metric", first | ({metric: known[metric]} if metric in more else {}), metric)
        switch.field(
            "metric",
            "Another figure",
            list(more),
            metric if metric in more else None,
            of="-more",
            index=None,
            placeholder="another figure",
            format_func=more.__getitem__,
            label_visibility="collapsed",
            width=160,
        )


def _take_click() -> None:
    """A click on a cell becomes part of the address."""
    cell = st.session_state["map"].picked
    if cell is not None:
        view.write(layer=int(cell[0]), head=int(cell[1]))
