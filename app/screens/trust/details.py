"""The page Trust in detail: claims with their fractions, coverage by group, kinds of units."""

from __future__ import annotations

from collections.abc import Callable
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.screens.trust import claims, fallen, figures, layer_claims
from routesparse.app.shell import switch
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, drift_note, elements, exports, glossary, numbers, plot, tables
from routesparse.engine.rows import OUTCOMES, RunRow
from routesparse.engine.store import audit_queries, fallback_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

_KIND_NAMES = {"expanded": "expanded by fallback", "kept": "as the router chose, sparse"}


def draw(
    store: OwnerView,
    shown: Scope,
    coverage: pd.DataFrame,
    gaps: pd.Series,
    audited: bool,
    kinds: pd.DataFrame,
    paid: pd.DataFrame,
) -> None:
    """gaps, kinds, paid: rows of the queries of these names."""
    if audited:
        layers = audit_queries.layer_claims(store, shown.run_ids)
        if len(layers):
            layer_claims.card(store, shown, layers)
        _claims_card(store, shown, coverage, gaps, bool(len(layers)))
    left, right = st.columns([1.25, 1], gap="small")
    with left:
        _shares_card(store, shown)
    with right:
        _kinds_card(store, shown, gaps, kinds, paid)
        if not shown.everything:
            _forward_card(store, shown.run)


def _claims_card(
    store: OwnerView, shown: Scope, coverage: pd.DataFrame, gaps: pd.Series, priced: bool
) -> None:
    confidence = shown.run.confidence
    with elements.card("three", "Three certificates, three different claims"):
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
    with elements.card("kinds", "How the units ended up"):
        st.html(store.made("fallback kinds", [], lambda: _kinds_html(kinds), of=shown.run_ids))
        elements.note(
            "A unit that was expanded and then became dense counts as dense by fallback. Tail "
            "rows and prompts below break-even are dense by design and not counted."
        )
        st.html(elements.lines_html(_lines(store, shown, gaps, kinds, paid)))


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
    ids, limit = list(runs["run_id"]), fallen.limit_of(shown.run)

    def made() -> tuple[pd.DataFrame, pd.DataFrame]:
        query = fallback_queries.kinds_by_layer if fell else audit_queries.coverage
        rows = claims.per_prompt(query(store, ids), runs, claim, by)
        return rows, claims.by_group(rows)

    rows, groups = store.made("shares", [claim, by, q], made, of=ids)
    title = "Dense by fallback" if fell else "Coverage of selected sparse units"
    over = "" if shown.everything else ", all runs of these weights"
    with elements.card("coverage", f"{title}{over}", None if fell else "coverage"):
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            switch.buttons("claim", names, claim)
            switch.buttons("by", groups_of, by)
        if groups.empty:
            elements.sub("Not measured: no stored run of these weights makes this claim and was audited.")
            return
        if claim == "conformal" and (void := drift_note.of_several(runs)):
            st.html(void)
        st.html(_groups_html(groups, lambda share: share > limit if fell else share < q - 1e-9))
        line = f"limit {numbers.share(limit, 0)}" if fell else f"nominal {numbers.share(q, 0)}"
        exports.chart_foot(
            f"{claim}-by-{by}-{shown.name}",
            f"n = {numbers.several(rows['run_id'].nunique(), 'run')} of "
            f"{numbers.several(rows['prompt_sha256'].nunique(), 'prompt')}, model {shown.run.model} · share of a "
            f"prompt's units, mean over prompts; {line} · 95 % interval, resampled by prompt · source: "
            f"{'head_choice' if fell else 'audit'}",
            groups,
            "coverage",
        )


def _groups_html(groups: pd.DataFrame, is_bad: Callable[[float], bool]) -> str:
    """A line a group; the mean is marked where it is on the wrong side."""
    lines = []
    for row in frames.rows(groups):
        mean = numbers.share(row.mean)
        ends = [numbers.share(end) for end in (row.low, row.high)]
        lines.append(
            (
                escape(row.group),
                *(f"{count:,}" for count in (row.runs, row.prompts, row.units)),
                f'<span class="rs-warn">{mean}</span>' if is_bad(row.mean) else mean,
                "–" if numbers.is_missing(row.low) else " to ".join(ends),
                *(numbers.share(share) for share in (row.least, row.most)),
            )
        )
    heads = ("group", "runs", "prompts", "units", "mean", "95 % interval", "lowest", "highest")
    return tables.table(heads, lines)


def _forward_card(store: OwnerView, run: RunRow) -> None:
    """Only with the full audit: what the errors of all layers add up to."""
    errors = audit_queries.forward_errors(store, run.run_id)
    if errors.empty:
        return
    with elements.card("forward", "Against the dense forward, layer by layer"):
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
