"""The page Trust in detail: claims with their fractions, kinds of units by layer, residuals."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.trust import claims, fallen, figures, layer_claims
from routesparse.app.shell import switch
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import (
    design,
    drift_note,
    exports,
    facts,
    glossary,
    numbers,
    plot,
    prompt_stats,
    share_figure,
    tables,
)
from routesparse.engine.rows import OUTCOMES, RunRow
from routesparse.engine.store import audit_queries, fallback_queries, queries
from routesparse.engine.store.owner_view import OwnerView

_KIND_NAMES = {"expanded": "expanded by fallback", "kept": "as the router chose, sparse"}


def draw(
    store: OwnerView,
    shown: Scope,
    coverage: pd.DataFrame,
    gaps: pd.Series,
    units: pd.DataFrame | None,
    kinds: pd.DataFrame,
    paid: pd.DataFrame,
) -> None:
    """units: audited ones, None for a run that was not audited; the others: rows of the queries of these names."""
    if units is not None:
        layers = audit_queries.layer_claims(store, shown.run_ids)
        if len(layers):
            layer_claims.card(store, shown, layers)
        _claims_card(store, shown, coverage, gaps, bool(len(layers)))
    left, right = st.columns([1.25, 1], gap="small")
    with left:
        _shares_card(store, shown)
        if units is not None:
            _residual_card(store, shown, units)
    with right:
        _kinds_card(store, shown, gaps, kinds, paid)
        if not shown.everything:
            _forward_card(store, shown.run)


def _claims_card(
    store: OwnerView, shown: Scope, coverage: pd.DataFrame, gaps: pd.Series, priced: bool
) -> None:
    confidence = shown.run.confidence
    with st.container(border=True, key="card-three", gap="xsmall"):
        st.html('<div class="rs-h">Three certificates, three different claims</div>')
        cards = store.made(
            "audit claims",
            [confidence],
            lambda: claims.cards_html(coverage, shown.runs, gaps, confidence),
            of=shown.run_ids,
        )
        floor = f" {glossary.HEAD_FLOOR}" if priced else ""
        st.html(f'{cards}<div class="rs-note">{escape(glossary.CERTIFICATE_SCOPE + floor)}</div>')
        exports.chart_foot(
            f"claims-{shown.name}",
            "share of selected sparse units whose audited truth is at least the claim; mean over prompts, 95 % "
            f"interval resampled by prompt · source: audit and head_choice of {shown.words}",
            coverage,
            "claims",
        )


def _kinds_card(
    store: OwnerView, shown: Scope, gaps: pd.Series, kinds: pd.DataFrame, paid: pd.DataFrame
) -> None:
    """The four kinds in figures, what fallback cost, and the time limit."""
    with st.container(border=True, key="card-kinds", gap="xsmall"):
        st.html('<div class="rs-h">How the units ended up</div>')
        st.html(store.made("fallback kinds", [], lambda: _kinds_html(kinds), of=shown.run_ids))
        st.html(
            '<div class="rs-note">A unit that was expanded and then became dense counts as dense by fallback. Tail '
            "rows and prompts below break-even are dense by design and not counted.</div>"
        )
        st.html(facts.lines_html(_lines(store, shown, gaps, kinds, paid)))


def _lines(
    store: OwnerView, shown: Scope, gaps: pd.Series, kinds: pd.DataFrame, paid: pd.DataFrame
) -> list[tuple[str, ...]]:
    events, of_layers = int(paid["events"].sum()), int(paid["layer_events"].sum())
    failed = f"{events:,}"
    if of_layers:
        failed += f", of which {of_layers:,} of heads that climbed with their layer"
    total, added = kinds["kernel_us"].sum(), paid["paid_us"].sum()
    part = numbers.share(added / total if total else None)
    budgets = fallback_queries.layer_budgets(store, shown.run_ids)
    limited, unmet = int(budgets["limit_us"].notna().sum()), kinds["unmet"]
    bounds = [
        (f"{name} bound over the worst row’s error, median and 95th percentile", _looseness(gaps, key), term)
        for name, key, term in (("tight", "tight", "tight"), ("paper’s", "paper", "paper_bound"))
    ]
    return [
        ("failed certificates", failed),
        ("limit for dense by fallback", numbers.share(fallen.limit_of(shown.run), 0), "fallback_limit"),
        ("paid for fallback", f"{numbers.micros(added)}, {part} of predicted kernel time", "paid"),
        (
            "layers whose plan exceeds Tℓ",
            f"{int(budgets['over_budget'].sum())} of {limited}" if limited else "no limit",
            "over_budget",
        ),
        (
            "escalations that Tℓ left no time for",
            numbers.NOT_MEASURED if unmet.isna().all() else f"{int(unmet.sum()):,}",
            "unmet",
        ),
        *bounds,
    ]


def _looseness(gaps: pd.Series, bound: str) -> str:
    if numbers.is_missing(gaps[f"{bound}_looseness"]):
        return numbers.NOT_MEASURED
    return " and ".join(numbers.times(gaps[f"{bound}_looseness{end}"]) for end in ("", "_p95"))


def _kinds_html(kinds: pd.DataFrame) -> str:
    lines = [
        (
            _KIND_NAMES.get(kind, kind),
            f"{int(rows['units'].sum()):,}",
            numbers.share(fallen.share(kinds, kind, "units")),
            numbers.micros(rows["kernel_us"].sum()),
            numbers.share(fallen.share(kinds, kind, "kernel_us")),
        )
        for kind, rows in ((kind, kinds[kinds["kind"] == kind]) for kind in OUTCOMES)
    ]
    return tables.table(("kind", "units", "of units", "predicted time", "of time"), lines)


def _shares_card(store: OwnerView, shown: Scope) -> None:
    """A claim's coverage, or the fallbacks, by group over prompts: one prompt says little, so all runs of these weights
    are shown."""
    runs = shown.runs if shown.everything else shown.same
    q = shown.run.confidence
    runs = runs[runs["confidence"] == q]
    names = {key: claim.name for key, claim in claims.CLAIMS.items()} | {claims.FALLBACK: "Dense by fallback"}
    claim = switch.chosen("claim", names)
    fell = claim == claims.FALLBACK
    groups_of = {key: name for key, name in claims.GROUPS.items() if not (fell and key == "family")}
    by = switch.chosen("by", groups_of)
    theme, ids, limit = design.current_theme(), list(runs["run_id"]), fallen.limit_of(shown.run)
    here = None if shown.everything else shown.run.run_id
    line = (q, f"nominal {numbers.share(q, 0)}")
    if fell:
        line = (limit, f"limit {numbers.share(limit, 0)}")

    def made() -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
        query = fallback_queries.kinds_by_layer if fell else audit_queries.coverage
        rows = claims.per_prompt(query(store, ids), runs, claim, by)
        groups = prompt_stats.by_group(rows, "group", "value")
        reference = share_figure.Reference(*line)
        drawn = {} if groups.empty else share_figure.figure(groups, rows, reference, theme, here)
        return rows, groups, drawn

    rows, groups, drawn = store.made("shares", [claim, by, here, *line, theme.name], made, of=ids)
    with st.container(border=True, key="card-coverage", gap="xsmall"):
        over = "" if shown.everything else ", all runs of these weights"
        title = (
            "Dense by fallback" if fell else f"Coverage of selected sparse units{glossary.mark('coverage')}"
        )
        st.html(f'<div class="rs-h">{title}{over}</div>')
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            switch.buttons("claim", names, claim)
            switch.buttons("by", groups_of, by)
        if groups.empty:
            st.html(
                '<div class="rs-sub">Not measured: no stored run of these weights makes this claim and was audited.'
                "</div>"
            )
            return
        if claim == "conformal" and (void := drift_note.of_several(runs)):
            st.html(void)
        plot.show(drawn, "audit-coverage", f"{names[claim]} by {by}")
        exports.chart_foot(
            f"{claim}-by-{by}-{shown.name}",
            f"n = {numbers.several(rows['run_id'].nunique(), 'run')} of "
            f"{numbers.several(rows['prompt_sha256'].nunique(), 'prompt')}, model "
            f"{shown.run.model}, {share_figure.dots_text(len(rows))} · share of a prompt's units; "
            "diamond: mean over prompts; bar: 95 % interval, resampled by prompt · source: "
            f"{'head_choice' if fell else 'audit'}",
            groups,
            "coverage",
            chart="audit-coverage",
        )


def _residual_card(store: OwnerView, shown: Scope, units: pd.DataFrame) -> None:
    theme = design.current_theme()

    def made() -> tuple[pd.DataFrame, dict[str, Any]]:
        bins = figures.residual_bins(units["residual"])
        return bins, figures.residual_figure(bins, _deltas(shown, units), theme)

    bins, drawn = store.made("audit residuals", [theme.name], made, of=shown.run_ids)
    claimed = units.dropna(subset=["delta"])
    text = "No δ: these runs used no calibration that fits, so no conformal claim was made."
    if len(claimed):
        beyond = numbers.share((claimed["residual"] > claimed["delta"]).mean())
        text = f"{beyond} of {len(claimed):,} units with a conformal claim lie beyond their δ."
    with st.container(border=True, key="card-residual", gap="xsmall"):
        title = "Gate statistic g: the probe’s minus the audited one"
        st.html(f'<div class="rs-h">{title}{glossary.mark("residual")}</div>')
        plot.show(drawn, "audit-residuals", title)
        st.html(
            f'{drift_note.of_several(shown.runs) if len(claimed) else ""}<div class="rs-note">{text} A residual is '
            "exactly 0 where the recent rows decide g: the probe reads all of them.</div>"
        )
        exports.chart_foot(
            f"residuals-{shown.name}",
            f"n = {numbers.several(len(units), 'unit')} · share of mass · source: head_choice and audit of "
            f"{shown.words}",
            bins,
            "residuals",
            chart="audit-residuals",
        )


def _forward_card(store: OwnerView, run: RunRow) -> None:
    """Only with the full audit: what the errors of all layers add up to."""
    errors = audit_queries.forward_errors(store, run.run_id)
    if errors.empty:
        return
    with st.container(border=True, key="card-forward", gap="xsmall"):
        st.html('<div class="rs-h">Against the dense forward, layer by layer</div>')
        drawn = figures.forward_figure(errors, design.current_theme())
        plot.show(drawn, "audit-forward", "Error against the dense forward, by layer")
        exports.chart_foot(
            f"forward-error-{queries.label(run.run_id)}",
            f"n = {len(errors)} layers · error of the attention output relative to the dense forward’s, errors of "
            f"earlier layers included · source: layer_run of run {queries.label(run.run_id)}",
            errors,
            "forward",
            chart="audit-forward",
        )


def _deltas(shown: Scope, units: pd.DataFrame) -> list[tuple[str, float]]:
    """Name and value of every delta_q in use, at most four: more lines say nothing."""
    named = units.dropna(subset=["delta"]).merge(shown.runs[["run_id", "calibration"]], on="run_id")
    found = named.assign(delta=named["delta"].round(9)).groupby(["calibration", "delta"]).size()
    largest = found.sort_values(ascending=False).head(4)
    return sorted((f"δ {name} {delta:.3f}", float(delta)) for name, delta in largest.index)
