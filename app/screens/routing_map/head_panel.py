"""What the map says of the chosen head: its claims beside the audited truth, its other segments, its other runs."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, view
from routesparse.app.ui import design, drift_note, exports, glossary, numbers, tables
from routesparse.app.unit import panel
from routesparse.engine.rows import RunRow
from routesparse.engine.store import compare_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

_BAD = '<span class="rs-warn">{}</span>'


def claims_card(choice: pd.Series, run: RunRow, layer: pd.Series | None) -> None:
    """layer: its row of queries.layers."""
    with st.container(border=True, key="card-claims", gap="xsmall"):
        st.html(f'<div class="rs-h">Certificates and the truth</div>{claims_html(choice, run, layer)}')


def claims_html(choice: pd.Series, run: RunRow, layer: pd.Series | None) -> str:
    """A line a claim: what is certified, what it must reach, and what the audit found; below it the audited errors."""
    lines = [] if run.tau_layer is None or layer is None else [_layer(layer, run)]
    dense = choice["pattern"] == "dense"
    if not dense:
        lines += [_head(choice, run), _conformal(choice, run), _row(choice)]
    head = (
        '<th class="l">at least this mass</th><th>certified</th><th>must reach</th><th>audited</th><th></th>'
    )
    body = "".join(
        f'<tr><td class="l">{name}{glossary.mark(term)}</td><td>{certified}</td><td>{floor}</td><td>{audited}</td>'
        f'<td class="l">{verdict}</td></tr>'
        for name, term, certified, floor, audited, verdict in lines
    )
    table = tables.framed(f"<tr>{head}</tr>{body}") if lines else ""
    none = '<div class="rs-sub">This unit is dense: it reads every key, so no certificate applies.</div>'
    missed = ""
    if not numbers.is_missing(choice["covered"]) and not choice["covered"]:
        told = numbers.may_miss(run.confidence)
        missed = (
            f'<div class="rs-note">{told[0].upper()}{told[1:]}; Trust says how many of this run’s are.</div>'
        )
    scope = glossary.CERTIFICATE_SCOPE + ("" if run.tau_layer is None else f" {glossary.HEAD_FLOOR}")
    return (
        f"{none if dense else ''}{table}{missed}{panel.audit_html(choice, run)}"
        f'<div class="rs-note">{escape(scope)}</div>'
    )


def _layer(layer: pd.Series, run: RunRow) -> tuple[str, ...]:
    known = not numbers.is_missing(layer["lower_mass"])
    verdict = "" if known else "all dense"
    if layer["layer_uncertified"]:
        verdict = _BAD.format("ran uncertified")
    elif not numbers.is_missing(layer["raised"]) and layer["raised"] > 0:
        verdict = f"climbed {numbers.several(int(layer['raised']), 'level')}"
    name = f"layer {layer['layer']}, mean of its heads{', least segment' if run.segments > 1 else ''}"
    certified = numbers.bound(layer["lower_mass"]) if known else "none"
    return name, "layer_certificate", certified, f"τ layer {numbers.threshold(run.tau_layer)}", "–", verdict


def _head(choice: pd.Series, run: RunRow) -> tuple[str, ...]:
    verdict = [_BAD.format("ran uncertified")] if choice["uncertified"] else []
    if not numbers.is_missing(choice["covered"]):
        missed = f"{numbers.small(choice['lower_mass'] - choice['audited_mass'])} below the bound"
        verdict.append("the bound holds" if choice["covered"] else _BAD.format(missed))
    floor = f"{'τ' if run.tau_layer is None else 'τ head'} {numbers.threshold(run.tau)}"
    certified, audited = numbers.bound(choice["lower_mass"]), _dash(choice["audited_mass"], 3)
    return "this head, mean of its rows", "certificate", certified, floor, audited, "; ".join(verdict)


def _conformal(choice: pd.Series, run: RunRow) -> tuple[str, ...]:
    """The truth is g*: the recent rows are a census, the body is audited."""
    claim, truth = choice["conformal_lower_mass"], choice["audited_gate"]
    certified = "no calibration" if run.calibration is None else "no δ for this length"
    audited, verdict = "–", ""
    if not numbers.is_missing(claim):
        certified, verdict = numbers.bound(claim), drift_note.html(run)
        if not numbers.is_missing(truth):
            audited = f"g* {numbers.mass(truth)}"
            verdict += "holds" if truth >= claim else _BAD.format("fails")
    return "as on prompts of the calibration", "conformal", certified, "–", audited, verdict


def _row(choice: pd.Series) -> tuple[str, ...]:
    found, certified = choice["row_covered"], numbers.bound(choice["row_lower_mass"])
    audited = "–" if numbers.is_missing(found) else f"{numbers.share(found)} of rows do"
    return "a random row, not every one", "row_statement", certified, "–", audited, ""


def segments_card(store: OwnerView, run: RunRow, unit: queries.Unit) -> None:
    """The same head over the segments of its prompt."""
    rows = compare_queries.over_segments(store, unit)
    with st.container(border=True, key="card-segments", gap="xsmall"):
        st.html('<div class="rs-h">The same head over the segments of this prompt</div>')
        lines = [
            (
                f'<td class="l">{_link(store, unit, str(row.segment + 1), segment=row.segment)}</td>'
                f"<td>{numbers.tokens(row.first_token, row.tokens)}</td>",
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


def runs_card(store: OwnerView, unit: queries.Unit) -> None:
    """The same head in other runs of the same weights."""
    rows = compare_queries.over_runs(store, unit)
    with st.container(border=True, key="card-other-runs", gap="xsmall"):
        st.html(f'<div class="rs-h">The same head in other runs, segment {unit.segment + 1}</div>')
        if len(rows) < 2:
            st.html('<div class="rs-sub">No other stored run of these weights reaches this segment.</div>')
            return
        theme = design.current_theme().name
        st.html(store.made("other runs", [unit, theme], lambda: _runs_html(store, unit, rows)))
        exports.chart_foot(
            f"runs-layer-{unit.layer}-head-{unit.head}-segment-{unit.segment}",
            f"n = {len(rows)} runs of the same weights, the newest {compare_queries.MOST_RUNS} at most · source: run, "
            "head_choice and audit",
            rows,
            "other-runs",
        )


def _runs_html(store: OwnerView, unit: queries.Unit, rows: pd.DataFrame) -> str:
    lines = []
    for row in frames.rows(rows):
        other = queries.Unit(str(row.run_id), unit.layer, unit.head, unit.segment)
        domain = "–" if numbers.is_missing(row.domain) else str(row.domain)
        lines.append(
            (
                f'<td class="l">{_link(store, other, queries.short_id(store, other.run_id))}</td>'
                f'<td class="l">{escape(str(row.prompt_name))}</td><td class="l">{escape(domain)}</td>',
                row,
                row.run_id == unit.run_id,
            )
        )
    return _table('<th class="l">run</th><th class="l">prompt</th><th class="l">domain</th>', lines)


def _link(store: OwnerView, unit: queries.Unit, label: str, **changes: int) -> str:
    address = navigate.address("map", **{**view.address_of(store, unit), **changes})
    return f'<a href="{escape(address)}" target="_self">{escape(label)}</a>'


def _table(first: str, lines: list[tuple[str, Any, bool]]) -> str:
    """HTML rows of decisions: cells that name each, the decision, and whether it is the one shown."""
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
        sparse = row.pattern != "dense"
        cells = (
            numbers.share(row.density),
            numbers.mass(row.gate_statistic),
            numbers.bound(row.lower_mass) if sparse else "–",
            numbers.mass(row.disagreement),
            numbers.mass(row.risk),
            numbers.whole_micros(row.kernel_us),
            "–" if numbers.is_missing(row.fallback) else escape(str(row.fallback)),
            _dash(row.audited_mass, 3),
            _dash(row.audited_error, 4),
        )
        budget = escape(str(row.budget) if sparse else "all keys")
        body.append(
            f'<tr class="{"pick" if here else ""}">{start}<td class="l wrap">'
            f"{tables.pattern_cell(theme, row.pattern, row.density)} {budget}</td>"
            f"{''.join(f'<td>{cell}</td>' for cell in cells)}</tr>"
        )
    return tables.framed(f"<tr>{head}</tr>{''.join(body)}")


def _dash(value: object, digits: int) -> str:
    return "–" if numbers.is_missing(value) else numbers.mass(value, digits)
