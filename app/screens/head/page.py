"""Head: everything about one routing unit: its probe, its candidates, its certificates and the truth beside them."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.head import claims
from routesparse.app.shell import navigate, run_header, view
from routesparse.app.shell.access import access
from routesparse.app.ui import design, exports, glossary, numbers, states, tables
from routesparse.app.unit import cards
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames, head_queries, queries
from routesparse.engine.store.owner_view import OwnerView


def render() -> None:
    """Draw the page."""
    store = access().store
    run = run_header.open_run(store, "Head")
    if run is None:
        return
    shown = view.read(run)
    absent = view.missing(run)
    choices = queries.choices(store, run.run_id, shown.segment, shown.batch_index)
    if choices.empty:
        run_header.header(store, run, "Head")
        states.undecided(
            run.routed,
            [
                f"{run.tokens:,} tokens are below break-even, the length from which routing is predicted to pay."
            ],
        )
        return
    first = view.first_pick(choices)
    layer = first[0] if shown.layer is None else shown.layer
    head = first[1] if shown.head is None else shown.head
    run_header.header(store, run, f"Layer {layer}, head {head}", (layer, head))
    if absent:
        states.note(absent)
    unit = queries.Unit(run.run_id, layer, head, shown.segment, shown.batch_index)
    with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
        run_header.segment_selector(run, shown, choices)
        navigate.link("Routing map", "map", **view.address_of(store, unit))
        navigate.link("Text", "text", **view.text_of(store, unit))
        navigate.link("Audit of this run", "audit", run=queries.short_id(store, run.run_id))
        navigate.link("Fallbacks of this run", "fallbacks", run=queries.short_id(store, run.run_id))
    found = choices[(choices["layer"] == layer) & (choices["head"] == head)]
    if found.empty:
        states.empty(
            "This unit was not routed", ["Its layer runs dense. Pick another head on the routing map."]
        )
        return
    _unit(store, run, unit, found.iloc[0])


def _unit(store: OwnerView, run: RunRow, unit: queries.Unit, choice: pd.Series) -> None:
    picked = (unit.layer, unit.head)
    candidates = queries.candidates(store, unit)
    layers = queries.layers(store, run.run_id)
    left, right = st.columns([1.75, 1], gap="small")
    with left:
        cards.full_probe_card(store, run, unit, choice, candidates)
        with st.container(border=True, key="card-claims", gap="xsmall"):
            own = layers[layers["layer"] == unit.layer]
            told = claims.claims_html(choice, run, None if own.empty else own.iloc[0])
            st.html(f'<div class="rs-h">Certificates and the truth</div>{told}')
    with right:
        cards.reason_card(run, choice, picked, queries.fallbacks(store, unit), candidates, layers)
        cards.scatter_card(store, run, unit, choice, candidates)
    cards.candidate_card(store, run, unit, candidates, key="card-all-candidates")
    if run.segments > 1:
        _segments(store, run, unit)
    _runs(store, run, unit)


def _segments(store: OwnerView, run: RunRow, unit: queries.Unit) -> None:
    rows = head_queries.over_segments(store, unit)
    with st.container(border=True, key="card-segments", gap="xsmall"):
        st.html('<div class="rs-h">The same head over the segments of this prompt</div>')
        lines = [
            (
                f'<td class="l"><a href="{escape(_address(store, unit, segment=row.segment))}" target="_self">'
                f"{row.segment + 1}</a></td><td>{numbers.tokens(row.first_token, row.tokens)}</td>",
                row,
                row.segment == unit.segment,
            )
            for row in frames.rows(rows)
        ]
        st.html(_table('<th class="l">segment</th><th>tokens</th>', lines))
        exports.chart_foot(
            f"segments-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}",
            f"n = {len(rows)} segments · masses as share of 1 · source: head_choice and audit of run "
            f"{queries.label(run.run_id)}",
            rows,
            "segments",
        )


def _runs(store: OwnerView, run: RunRow, unit: queries.Unit) -> None:
    rows = head_queries.over_runs(store, unit)
    with st.container(border=True, key="card-other-runs", gap="xsmall"):
        st.html(f'<div class="rs-h">The same head in other runs, segment {unit.segment + 1}</div>')
        if len(rows) < 2:
            st.html('<div class="rs-sub">No other stored run of these weights reaches this segment.</div>')
            return
        theme = design.current_theme().name
        st.html(store.made("other runs", [unit, theme], lambda: _runs_html(store, unit, rows)))
        exports.chart_foot(
            f"runs-layer-{unit.layer}-head-{unit.head}-segment-{unit.segment}",
            f"n = {len(rows)} runs of the same weights, the newest {head_queries.MOST_RUNS} at most · source: run, "
            "head_choice and audit",
            rows,
            "other-runs",
        )


def _runs_html(store: OwnerView, unit: queries.Unit, rows: pd.DataFrame) -> str:
    """The table of rows of head_queries.over_runs; the one of this run is marked."""
    lines = []
    for row in frames.rows(rows):
        other = queries.Unit(str(row.run_id), unit.layer, unit.head, unit.segment)
        domain = "–" if numbers.is_missing(row.domain) else str(row.domain)
        lines.append(
            (
                f'<td class="l"><a href="{escape(_address(store, other))}" target="_self">'
                f"{escape(queries.short_id(store, other.run_id))}</a></td>"
                f'<td class="l">{escape(str(row.prompt_name))}</td><td class="l">{escape(domain)}</td>',
                row,
                row.run_id == unit.run_id,
            )
        )
    return _table('<th class="l">run</th><th class="l">prompt</th><th class="l">domain</th>', lines)


def _address(store: OwnerView, unit: queries.Unit, **changes: int) -> str:
    return navigate.address("head", **{**view.address_of(store, unit), **changes})


def _table(first: str, lines: list[tuple[str, Any, bool]]) -> str:
    """HTML rows of decisions: the pattern in its colour with its letter, then the numbers."""
    theme = design.current_theme()
    head = (
        f'{first}<th class="l">choice</th>{glossary.heading("kept", "density")}'
        f"{glossary.heading('g', 'gate_statistic')}"
        f"{glossary.heading('certified', 'certificate')}{glossary.heading('u', 'disagreement')}"
        f"{glossary.heading('risk', 'risk')}{glossary.heading('predicted µs', 'kernel')}"
        f"{glossary.heading('fallback', 'fallback')}<th>audited mass</th>{glossary.heading('error', 'error')}"
    )
    body = []
    for start, row, here in lines:
        value = row._asdict()
        sparse = value["pattern"] != "dense"
        color = design.pattern_color(theme, value["pattern"], value["density"])
        letter = design.letter(value["pattern"])
        fallback = "–" if numbers.is_missing(value["fallback"]) else str(value["fallback"])
        body.append(
            f'<tr class="{"pick" if here else ""}">{start}<td class="l wrap"><span class="cell" '
            f'style="background:{color};color:{design.text_on(color)}">{letter}</span> '
            f"{escape(str(value['budget']) if sparse else 'all keys')}</td>"
            f"<td>{numbers.share(value['density'])}</td><td>{numbers.mass(value['gate_statistic'])}</td>"
            f"<td>{numbers.bound(value['lower_mass']) if sparse else '–'}</td>"
            f"<td>{numbers.mass(value['disagreement'])}</td><td>{numbers.mass(value['risk'])}</td>"
            f"<td>{numbers.whole_micros(value['kernel_us'])}</td><td>{escape(fallback)}</td>"
            f"<td>{_dash(value['audited_mass'], 3)}</td><td>{_dash(value['audited_error'], 4)}</td></tr>"
        )
    return tables.framed(f"<tr>{head}</tr>{''.join(body)}")


def _dash(value: object, digits: int) -> str:
    return "–" if numbers.is_missing(value) else numbers.mass(value, digits)
