"""Certificate: what an attention function did to one prompt, head by head, and what that does and does not say."""

from __future__ import annotations

import json
from dataclasses import asdict
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.screens.certificate import figures, tables
from routesparse.app.shell import (
    certificate_link,
    export_menu,
    navigate,
    run_header,
    switch,
    verdict_bar,
    view,
)
from routesparse.app.shell.access import access
from routesparse.app.ui import design, exports, facts, glossary, grid, numbers, states
from routesparse.app.ui.plain_text import visible
from routesparse.engine.certificate_rows import CertificateRow, NamedRow
from routesparse.engine.certification.rounding import all_digits
from routesparse.engine.errors import InputError
from routesparse.engine.export import certificate_words
from routesparse.engine.store import certificate_queries, queries
from routesparse.engine.store.owner_view import OwnerView

_TERMS = {
    "Output error": "output_claim",
    "Worst row seen": "output_claim",
    "Beyond rounding": "alarm",
    "Retained mass": "retained_mass",
    "Largest key read": "hit_rate",
}


def render() -> None:
    """Draw the page."""
    store = access().store
    row = _opened(store)
    whole = None if row is None else certificate_queries.whole(store, row.run_id)
    if row is None or whole is None:
        return
    _header(store, row)
    heads = certificate_queries.claims(store, row.run_id, "head")
    layers = certificate_queries.claims(store, row.run_id, "layer")
    boxes = certificate_words.figures(row, whole)
    st.html(facts.boxes_html([(*box, _TERMS[box[0]]) if box[0] in _TERMS else box for box in boxes]))
    if len(heads):
        left, right = st.columns([1.15, 1], gap="small")
        with left:
            _map_card(row, heads)
        with right:
            _worst_card(row, heads)
    named = certificate_queries.named_rows(store, row.run_id)
    if named:
        _named_card(row, named)
    left, right = st.columns([1.15, 1], gap="small")
    with left:
        _layers_card(row, layers)
        _made_card(row)
    with right, st.container(border=True, key="card-says", gap="xsmall"):
        st.html(
            '<div class="rs-h">What this says</div>'
            f'<div class="rs-note">{escape(certificate_words.promises(row, whole))}</div>'
            '<div class="rs-h" style="margin-top:8px">What it does not say</div>'
            f'<div class="rs-note">{escape(certificate_words.not_promised(whole))}</div>'
        )


def _opened(store: OwnerView) -> CertificateRow | None:
    """The certificate that the address names, else the newest; None with words on the page where there is none."""
    named = st.query_params.get("run")
    try:
        found = certificate_queries.resolve(store, named) if named else certificate_queries.newest(store)
        if named and found is None:
            run_id = queries.resolve(store, named)  # says so where it is nothing either
            st.html('<div class="rs-title">Certificate</div>')
            states.empty("This is a run, not a certificate", ["Its own certificates are on its page Audit."])
            navigate.link("Audit", "audit", run=queries.short_id(store, run_id))
            return None
    except InputError as error:
        st.html('<div class="rs-title">Certificate</div>')
        told = str(error)
        states.problem(
            "This link leads nowhere",
            [f"{told[0].upper()}{told[1:]}.", "Pick a certificate on the Runs page."],
        )
        navigate.link("Runs", "runs")
        return None
    if found is None:
        st.html('<div class="rs-title">Certificate</div>')
        states.empty(
            "No certificates yet",
            [
                "certify compares any attention on a prompt with exact attention, in random rows of every head: the "
                "model’s own, a transformers function, a block mask in a file, a published rule or our router. What it "
                "finds appears here by itself.",
            ],
            certificate_link.CERTIFY,
        )
        return None
    if not named:
        view.write(run=queries.label(found))
    return certificate_queries.certificate(store, found)


def _header(store: OwnerView, row: CertificateRow) -> None:
    subject = visible(row.subject)
    run_header.tab_title("Certificate", row.subject)
    made = [
        f"{row.tokens:,} tokens",
        row.model,
        numbers.device(row.device),
        row.dtype,
        f"attention function {visible(row.function)}",
        f"run {queries.label(row.run_id)}",
    ]
    with st.container(horizontal=True, gap="small", key="run-header"):
        st.html(
            f'<div class="rs-title">Certificate of <bdi>{escape(subject)}</bdi></div><div class="rs-sub"><b><bdi>'
            f"{escape(visible(row.prompt_name))}</bdi></b> · {escape(' · '.join(made))}</div>",
            width="stretch",
        )
        export_menu.menu(store, row.run_id)
    level = certificate_words.level(row.verdict, row.tolerance)
    more = "".join(f"<span>{escape(visible(one))}.</span>" for one in certificate_words.findings(row))
    told = row.sentence[:1].upper() + row.sentence[1:]
    st.html(verdict_bar.bar(level, certificate_words.word(row.verdict, row.tolerance), told, more))


def _map_card(row: CertificateRow, heads: pd.DataFrame) -> None:
    known = figures.metrics(heads)
    name = switch.chosen("metric", known)
    with st.container(border=True, key="card-heads", gap="xsmall"):
        with st.container(horizontal=True, gap="medium", vertical_alignment="center"):
            st.html('<div class="rs-h">Head by head</div>', width="content")
            switch.buttons("metric", {key: metric.name for key, metric in known.items()}, name)
        drawn = figures.head_map(heads, name, (row.layers, row.heads), design.current_theme())
        grid.show(drawn, "certificate-map", f"{known[name].name}, {row.layers} layers by {row.heads} heads")
        batch = "; of several prompts the worst" if row.batch > 1 else ""
        exports.chart_foot(
            f"certificate-heads-{queries.label(row.run_id)}",
            f"n = {row.sampled_rows:,} random rows of each of {len(heads):,} heads · {known[name].unit}, as seen{batch}"
            f"; stronger: more lost · source: claim of run {queries.label(row.run_id)}",
            heads,
            "certificate-heads",
            "certificate-map",
        )


def _worst_card(row: CertificateRow, heads: pd.DataFrame) -> None:
    worst = tables.worst(heads)
    with st.container(border=True, key="card-worst-certified", gap="xsmall"):
        st.html('<div class="rs-h">Worst heads</div>' + tables.worst_html(worst, row))
        exports.chart_foot(
            f"certificate-worst-{queries.label(row.run_id)}",
            f"n = the {len(worst)} worst of {len(heads):,} heads by mean output error, {row.sampled_rows:,} rows each"
            f" · ≤ and ≥: bounds at {certificate_words.confidence(row)} confidence · source: claim",
            worst,
            "certificate-worst",
        )


def _named_card(row: CertificateRow, named: list[NamedRow]) -> None:
    with st.container(border=True, key="card-named-rows", gap="xsmall"):
        st.html(
            f'<div class="rs-h">Rows that were named {glossary.mark("named_rows")}</div>'
            f'<div class="rs-note">{escape(certificate_words.named_note(row))}</div>{tables.named_html(named)}'
        )
        exports.chart_foot(
            f"certificate-named-{queries.label(row.run_id)}",
            f"{certificate_words.named_caption(named)} Source: named_row",
            pd.DataFrame([asdict(one) for one in named]).drop(columns=["run_id", "text"]),
            "certificate-named",
        )


def _layers_card(row: CertificateRow, layers: pd.DataFrame) -> None:
    with st.container(border=True, key="card-certified-layers", gap="xsmall"):
        st.html('<div class="rs-h">Layer by layer</div>' + tables.layers_html(layers))
        exports.chart_foot(
            f"certificate-layers-{queries.label(row.run_id)}",
            f"n = {row.heads * row.batch * row.sampled_rows:,} rows of each layer, its heads pooled · ≤ and ≥: bounds "
            f"at {certificate_words.confidence(row)} confidence · source: claim",
            layers,
            "certificate-layers",
        )


def _made_card(row: CertificateRow) -> None:
    versions = json.loads(row.versions_json)
    asked = {name: value for name, value in json.loads(row.config_json).items() if name != "router"}
    pairs = [
        ("Made", f"{row.created_at[:16].replace('T', ' ')} UTC"),
        ("Device", numbers.device(row.device)),
        ("Number format", row.dtype),
        ("Model", f"{row.model}, revision {row.model_revision}"),
        (
            "Asked for",
            ", ".join(f"{name} {visible(str(value))}" for name, value in asked.items())
            or "its own attention",
        ),
        (
            "Tolerance",
            "rounding only"
            if row.tolerance is None
            else f"{row.tolerance:g} in all but {all_digits(row.most_beyond, percent=True)} of rows",
        ),
        *([] if row.plan is None else [("Layers without a plan", f"{row.dense_layers:,} of {row.layers:,}")]),
        ("Seed", str(row.seed)),
        ("Versions", ", ".join(f"{name} {value}" for name, value in sorted(versions.items()))),
        ("Commit", (row.git_commit or "unknown")[:12]),
    ]
    with st.container(border=True, key="card-certificate-made", gap="xsmall"):
        st.html('<div class="rs-h">Made with</div>' + facts.lines_html(pairs))
