"""What the map says of the chosen head: its claims beside the audited truth, and its other segments."""

from __future__ import annotations

from dataclasses import replace
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate, view
from routesparse.app.ui import design, drift_note, elements, exports, glossary, numbers, tables
from routesparse.app.unit import panel
from routesparse.engine.rows import RunRow
from routesparse.engine.store import compare_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

_BAD = '<span class="rs-warn">{}</span>'


def claims_card(choice: pd.Series, run: RunRow, layer: pd.Series | None, failed_html: str) -> None:
    """layer: its row of queries.layers; failed_html: the certificates that failed."""
    with elements.card("claims", "Certificates and the truth"):
        st.html(claims_html(choice, run, layer) + failed_html)


def claims_html(choice: pd.Series, run: RunRow, layer: pd.Series | None) -> str:
    """A line a claim: what is certified, what it must reach, and what the audit found; below it the audited errors."""
    lines = [] if run.tau_layer is None or layer is None else [_layer(layer, run)]
    dense = choice["pattern"] == "dense"
    if not dense:
        lines += [_head(choice, run), _conformal(choice, run), _row(choice)]
    heads = ("at least this mass", "certified", "must reach", "audited", "")
    cells = [(f"{name}{glossary.mark(term)}", *others) for name, term, *others in lines]
    table = tables.table(heads, cells, (0, 4)) if lines else ""
    none = '<div class="rs-sub">This unit is dense: it reads every key, so no certificate applies.</div>'
    missed = ""
    if not numbers.is_missing(choice["covered"]) and not choice["covered"]:
        told = numbers.may_miss(run.confidence)
        missed = (
            f'<div class="rs-note">{told[0].upper()}{told[1:]}; Trust says how many of this run’s are.</div>'
        )
    scope = "About the mass that is kept, not about the answer."
    if run.tau_layer is not None:
        scope += " The head’s is a floor, which says nothing about quality; the layer’s says what was kept."
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
            audited = numbers.mass(truth)
            verdict += "holds" if truth >= claim else _BAD.format("fails")
    return "as on prompts of the calibration", "conformal", certified, "–", audited, verdict


def _row(choice: pd.Series) -> tuple[str, ...]:
    found, certified = choice["row_covered"], numbers.bound(choice["row_lower_mass"])
    audited = "–" if numbers.is_missing(found) else f"{numbers.share(found)} of rows do"
    return "a random row, not every one", "row_statement", certified, "–", audited, ""


def segments_card(store: OwnerView, run: RunRow, unit: queries.Unit) -> None:
    """The same head over the segments of its prompt."""
    rows = compare_queries.over_segments(store, unit)
    with elements.card("segments", "The same head over the segments of this prompt"):
        lines = []
        for row in frames.rows(rows):
            there = link(store, replace(unit, segment=row.segment), str(row.segment + 1))
            lines.append((there, f"<td>{numbers.tokens(row.first_token, row.tokens)}</td>", *decision(row)))
        here = (rows["segment"] == unit.segment).to_numpy().nonzero()[0]
        st.html(tables.table(("segment", "<th>tokens</th>", *heads()), lines, (0, 2), here))
        exports.chart_foot(
            f"segments-{queries.label(run.run_id)}-layer-{unit.layer}-head-{unit.head}",
            f"n = {len(rows)} segments · masses as share of 1 · source: head_choice and audit of run "
            f"{queries.label(run.run_id)}",
            rows,
            "segments",
        )


def link(store: OwnerView, unit: queries.Unit, label: str) -> str:
    address = navigate.address("map", **view.address_of(store, unit))
    return f'<a href="{escape(address)}" target="_self">{escape(label)}</a>'


def heads() -> list[str]:
    """Of the cells of ``decision``."""
    termed = {"kept": "density", "g": "gate_statistic", "certified": "certificate", "u": "disagreement"}
    termed |= {"risk": "risk", "predicted µs": "kernel", "fallback": "fallback"}
    heads = [glossary.heading(name, term) for name, term in termed.items()]
    return ["choice", *heads, "audited mass", glossary.heading("error", "error")]


def decision(row: Any) -> list[str]:
    sparse = row.pattern != "dense"
    cell = tables.pattern_cell(design.current_theme(), row.pattern, row.density)
    return [
        f'<td class="l wrap">{cell} {escape(str(row.budget) if sparse else "all keys")}</td>',
        numbers.share(row.density),
        numbers.mass(row.gate_statistic),
        numbers.bound(row.lower_mass) if sparse else "–",
        numbers.mass(row.disagreement),
        numbers.mass(row.risk),
        numbers.whole_micros(row.kernel_us),
        "–" if numbers.is_missing(row.fallback) else escape(str(row.fallback)),
        _dash(row.audited_mass, 3),
        _dash(row.audited_error, 4),
    ]


def _dash(value: object, digits: int) -> str:
    return "–" if numbers.is_missing(value) else numbers.mass(value, digits)
