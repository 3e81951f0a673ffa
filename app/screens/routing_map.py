"""Routing map: which head took which pattern on this prompt, why, and what it cost, layer by layer."""

from __future__ import annotations

from html import escape

import pandas as pd
import streamlit as st

from routesparse.app import (
    design,
    exports,
    head_charts,
    head_panel,
    map_figure,
    numbers,
    prompt_card,
    states,
    view,
)
from routesparse.app.access import access
from routesparse.app.view import METRICS, View
from routesparse.engine.errors import InputError
from routesparse.engine.records import RunRow
from routesparse.engine.store import queries
from routesparse.engine.store.duckdb_store import Store


def render() -> None:
    """Draw the page."""
    store = access().store
    run = _run(store)
    if run is None:
        return
    shown = view.read(run)
    choices = queries.choices(store, run.run_id, shown.segment, shown.batch_index)
    _header(run, store)
    if choices.empty:
        lines = ["The bundle holds no decisions for this segment. Analyse the prompt again."]
        if not run.routed:
            lines = [
                f"{run.tokens:,} tokens are below break-even: dense attention ran untouched, without a probe.",
                f"Prefill took {numbers.millis(run.total_ms)}. Analyse a longer prompt to see routing.",
            ]
        states.empty("Nothing was routed in this run", lines)
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
    _kpis(run, choices)
    left, right = st.columns([2.1, 1], gap="small")
    with left:
        _map_card(run, shown, choices, layers, picked)
        _candidate_card(run, candidates, picked)
        prompt_card.render(store, run, shown.segment, shown.batch_index)
    with right:
        if found.empty:
            states.empty("This unit was not routed", ["Pick another cell of the map."])
            return
        _reason_card(run, found.iloc[0], picked, queries.fallbacks(store, unit), candidates)
        _probe_card(store, run, unit)
        _scatter_card(run, candidates, picked)
        _audit_card(found.iloc[0])


def _run(store: Store) -> RunRow | None:
    """The run that the address names, else the one opened last, else the newest."""
    named = st.query_params.get("run")
    if named:
        try:
            run_id = queries.resolve(store, named)
        except InputError as error:
            st.html('<div class="rs-title">Routing map</div>')
            states.problem("This link leads nowhere", [str(error), "Pick a run on the Runs page."])
            return None
    else:
        newest = store.rows("SELECT run_id FROM run ORDER BY created_at DESC, run_key DESC LIMIT 1")
        last = st.session_state.get("run")
        run_id = last if last in store.run_ids() else newest[0][0] if newest else None
        if run_id is None:
            st.html('<div class="rs-title">Routing map</div>')
            states.empty(
                "No runs yet",
                ["Analyse a text file; its routing map appears here."],
                "routesparse analyze FILE",
            )
            return None
        view.write(run=queries.short_id(store, run_id))
    st.session_state["run"] = run_id
    return queries.run(store, run_id)


def _header(run: RunRow, store: Store) -> None:
    facts = [
        f"{run.tokens:,} tokens",
        run.model,
        numbers.device(run.device),
        f"policy {run.policy}, τ {run.tau:.2f}, Tℓ {numbers.limit(run.budget)}",
        f"calibration {run.calibration or 'none'}",
        f"probe {run.probe_mode}",
    ]
    st.html(
        f'<div class="rs-title">Routing map</div><div class="rs-sub"><b>{escape(run.prompt_name)}</b> · '
        f"{escape(' · '.join(facts))} · run {escape(queries.label(run.run_id))}</div>"
    )


def _kpis(run: RunRow, choices: pd.DataFrame) -> None:
    """Six figures of the whole run; the certified one is of the segment shown."""
    sparse = choices[choices["pattern"] != "dense"]
    certified = float((sparse["lower_mass"] >= run.tau).mean()) if len(sparse) else None
    speedup = None if run.dense_ms is None else run.dense_ms / run.total_ms
    fallback = run.dense_fallback_units / run.units if run.units else None
    boxes = [
        ("Causal area kept", numbers.share(run.density), "mean over units"),
        (
            "Prefill",
            numbers.millis(run.total_ms) if speedup is None else numbers.times(speedup),
            "dense not measured"
            if speedup is None
            else f"{numbers.millis(run.total_ms)} · dense {numbers.millis(run.dense_ms)}",
        ),
        (
            "Dense by fallback",
            numbers.share(fallback),
            f"{run.dense_fallback_units} of {run.units} · {run.expanded_units} expanded",
        ),
        (f"Certified ≥ {run.tau:.2f}", numbers.share(certified, 0), "of sparse units shown"),
        ("Audited coverage", numbers.share(run.coverage), f"nominal {numbers.share(run.confidence, 0)}"),
        ("Output error", numbers.mass(run.mean_error, 4), "relative, audited mean"),
    ]
    html = "".join(
        f'<div><span>{escape(name)}</span><b class="{"none" if value == numbers.NOT_MEASURED else ""}">'
        f"{escape(value)}</b> <small>{escape(note)}</small></div>"
        for name, value, note in boxes
    )
    st.html(f'<div class="rs-kpi">{html}</div>')


def _map_card(
    run: RunRow, shown: View, choices: pd.DataFrame, layers: pd.DataFrame, picked: tuple[int, int]
) -> None:
    theme = design.current_theme()
    with st.container(border=True, key="card-map", gap="xsmall"):
        _metric_selector(shown)
        chart, cells = map_figure.figure(
            choices, layers, shown.metric, picked, theme, (run.layers, run.heads)
        )
        st.html(
            '<div class="rs-note" style="display:flex"><span>layer ↓ head →</span><span style="margin-left:auto">'
            'ms a layer: <i class="rs-bar"></i> measured, <b>|</b> planned, '
            f'<b style="color:{theme.warn}">|</b> Tℓ; units that fell back</span></div>'
        )
        st.plotly_chart(
            chart,
            key="map",
            theme=None,
            on_select=_take_click,
            selection_mode="points",
            config=design.chart_config(f"routing-map-{queries.label(run.run_id)}-{shown.metric}"),
        )
        if shown.metric == "pattern":
            st.html(map_figure.pattern_legend(choices, theme))
        else:
            st.html(map_figure.scale_legend(cells, shown.metric, theme))
        _segment_selector(run, shown, choices)
        exports.chart_foot(
            f"routing-map-{queries.label(run.run_id)}-segment-{shown.segment}",
            f"n = {len(choices)} units of segment {shown.segment + 1} · colour: {cells.unit} · "
            f"source: head_choice, audit and layer_run of run {queries.label(run.run_id)}",
            choices,
            "map",
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


def _segment_selector(run: RunRow, shown: View, choices: pd.DataFrame) -> None:
    first = choices.iloc[0]
    span = numbers.tokens(int(first["first_token"]), int(first["tokens"]))
    tail = int(first["tokens"] - first["body_tokens"])
    note = f"tokens {span}" + (f", of which the last {tail} are dense (tail)" if tail else "")
    with st.container(horizontal=True, vertical_alignment="center", gap="medium"):
        st.html(
            f'<div class="rs-sub">Segment {shown.segment + 1} of {run.segments} · {note}</div>',
            width="content",
        )
        if run.segments > 1:
            st.session_state["segment-choice"] = shown.segment + 1
            st.slider(
                "Segment",
                1,
                run.segments,
                key="segment-choice",
                label_visibility="collapsed",
                width=220,
                on_change=lambda: view.write(segment=st.session_state["segment-choice"] - 1),
            )
        if run.batch > 1:
            st.session_state["batch-choice"] = shown.batch_index
            st.selectbox(
                "Prompt of the batch",
                range(run.batch),
                key="batch-choice",
                width=120,
                on_change=lambda: view.write(batch=st.session_state["batch-choice"]),
            )


def _take_click() -> None:
    """A click on a cell becomes part of the address; a second click on it only deselects, so it counts too."""
    points = st.session_state["map"].selection.points
    run = st.session_state["run"]
    data = points[0].get("customdata") if points else st.session_state.get("last-click", {}).get(run)
    if not data:
        return
    st.session_state["last-click"] = {run: data}
    layer, head = (data["0"], data["1"]) if isinstance(data, dict) else data
    view.write(layer=int(layer), head=int(head))


def _reason_card(
    run: RunRow, choice: pd.Series, picked: tuple[int, int], events: pd.DataFrame, candidates: pd.DataFrame
) -> None:
    with st.container(border=True, key="card-reason", gap="xsmall"):
        st.html(f'<div class="rs-h">{escape(head_panel.title(choice))}</div>')
        layer, head = picked
        moves: list[tuple[str, str, int, int, bool]] = [
            ("head", "Left", layer, head - 1, head > 0),
            ("head", "Right", layer, head + 1, head < run.heads - 1),
            ("layer", "Up", layer - 1, head, layer > 0),
            ("layer", "Down", layer + 1, head, layer < run.layers - 1),
        ]
        with st.container(horizontal=True, gap="xsmall", key="move-row"):
            for label, key, to_layer, to_head, possible in moves:
                st.button(
                    label,
                    key=f"move-{key}",
                    shortcut=key,
                    disabled=not possible,
                    on_click=view.write,
                    kwargs={"layer": to_layer, "head": to_head},
                )
        st.html(f'<div class="rs-sub">{escape(choice["reason"])}</div>')
        if len(events):
            st.html(head_panel.fallback_html(events, candidates))
        st.html(head_panel.facts_html(choice, run))


def _candidate_card(run: RunRow, candidates: pd.DataFrame, picked: tuple[int, int]) -> None:
    with st.container(border=True, key="card-candidates", gap="xsmall"):
        st.html(f'<div class="rs-h">Candidates of layer {picked[0]}, head {picked[1]}</div>')
        if candidates.empty:
            st.html('<div class="rs-sub">Not recorded for this run.</div>')
            return
        st.html(head_panel.candidates_html(candidates))
        exports.chart_foot(
            f"candidates-{queries.label(run.run_id)}-layer-{picked[0]}-head-{picked[1]}",
            f"n = {len(candidates)} candidates · mass as share of 1, time as predicted · certified: – where not "
            f"tested · source: candidate_score and fallback_event of run {queries.label(run.run_id)}",
            candidates,
            "candidates",
        )


def _probe_card(store: Store, run: RunRow, unit: queries.Unit) -> None:
    with st.container(border=True, key="card-probe", gap="xsmall"):
        full = bool(st.session_state.get("full-probe"))
        heatmap = (queries.probe_full(store, unit) if full else None) or queries.probe_thumbnail(store, unit)
        if heatmap is None:
            st.html('<div class="rs-h">Probe</div><div class="rs-sub">Not recorded for this unit.</div>')
            return
        theme = design.current_theme()
        blocks = heatmap.mass.shape[1] * heatmap.block_pool
        st.html(f'<div class="rs-h">Probe, {heatmap.probe_rows} rows × {blocks} key blocks</div>')
        st.plotly_chart(
            head_charts.probe_figure(heatmap, theme, run.block_k),
            key="probe",
            theme=None,
            config=design.chart_config(f"probe-{queries.label(run.run_id)}-{unit.layer}-{unit.head}"),
        )
        st.html(head_charts.probe_legend(heatmap, theme))
        st.toggle("Full resolution", key="full-probe", help="Reads the float16 probe from the bundle")
        exports.chart_foot(
            f"probe-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}",
            f"n = {heatmap.probe_rows} rows · softmax mass per key block of {run.block_k} tokens · source: probe",
            head_charts.probe_rows(heatmap),
            "probe",
        )


def _scatter_card(run: RunRow, candidates: pd.DataFrame, picked: tuple[int, int]) -> None:
    if candidates.empty:
        return
    with st.container(border=True, key="card-scatter", gap="xsmall"):
        st.html('<div class="rs-h">Risk against time</div>')
        st.plotly_chart(
            head_charts.scatter(candidates, run, design.current_theme()),
            key="scatter",
            theme=None,
            config=design.chart_config(f"risk-time-{queries.label(run.run_id)}-{picked[0]}-{picked[1]}"),
        )
        st.html(
            '<div class="rs-note">Ring: the choice. Filled: g ≥ λ. Dotted: lower convex hull. Lines: risk at '
            f"g = λ and g = τ without disagreement. n = {len(candidates)}; rows as in the table.</div>"
        )


def _audit_card(choice: pd.Series) -> None:
    with st.container(border=True, key="card-audit", gap="xsmall"):
        st.html(f'<div class="rs-h" style="margin-bottom:4px">Audited</div>{head_panel.audit_html(choice)}')
