"""Audit: what the dense audit says about errors, bounds and the three certificates, and which heads are worst."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.audit import claims, figures, layer_claims, output_claim, worst_heads
from routesparse.app.shell import navigate, scope, switch, view, way_back
from routesparse.app.shell.access import access
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import (
    design,
    drift_note,
    exports,
    facts,
    glossary,
    layer_words,
    numbers,
    plot,
    prompt_stats,
    share_figure,
    states,
)
from routesparse.engine.rows import EXECUTED_TOLERANCE, RunRow, deviates
from routesparse.engine.store import audit_queries, queries
from routesparse.engine.store.owner_view import OwnerView

MOST_UNITS = 20_000


def render() -> None:
    """Draw the page."""
    way_back.restore("audit")
    store = access().store
    shown = scope.open_scope(store, "Audit")
    if shown is None:
        return
    if shown.everything:
        # A share of covered units is read against one nominal level.
        alike = shown.runs[shown.runs["confidence"] == shown.run.confidence]
        shown = Scope(shown.run, True, alike.reset_index(drop=True), shown.same)
    coverage = audit_queries.coverage(store, shown.run_ids)
    if coverage.empty:
        _nothing(store, shown)
        return
    units = audit_queries.units(store, shown.run_ids, MOST_UNITS)
    gaps = audit_queries.gaps(store, shown.run_ids).iloc[0]
    missed = int(shown.runs["uncertified_units"].sum())
    if missed:
        told = numbers.uncertified(missed, int(shown.runs["units"].sum()))
        states.problem(told, [glossary.TERMS["uncertified"]])
    _notes(shown.run, shown.everything, coverage["executed_error"].max())
    layers = audit_queries.layer_claims(store, shown.run_ids)
    if layers["uncertified"].any():
        told = layer_words.uncertified(layers, layers["uncertified"], shown.everything)
        states.problem(told, [glossary.TERMS["uncertified_layers"]])
    _kpis(coverage, gaps)
    if len(layers):
        layer_claims.card(store, shown, layers)
    with st.container(border=True, key="card-three", gap="xsmall"):
        st.html('<div class="rs-h">Three certificates, three different claims</div>')
        confidence = shown.run.confidence
        cards = store.made(
            "audit claims",
            [confidence],
            lambda: claims.cards_html(coverage, shown.runs, gaps, confidence),
            of=shown.run_ids,
        )
        st.html(cards)
        floor = f" {glossary.HEAD_FLOOR}" if len(layers) else ""
        st.html(f'<div class="rs-note">{escape(glossary.CERTIFICATE_SCOPE + floor)}</div>')
        exports.chart_foot(
            f"claims-{shown.name}",
            "share of selected sparse units whose audited truth is at least the claim; mean over prompts, 95 % "
            f"interval resampled by prompt · source: audit and head_choice of {shown.words}",
            coverage,
            "claims",
        )
    if not shown.everything:
        output_claim.card(store, shown, coverage, gaps)
    left, right = st.columns(2, gap="small")
    with left:
        _error_card(store, shown, units, gaps)
    with right:
        _mass_card(store, shown, units)
    left, right = st.columns([1.25, 1], gap="small")
    with left:
        _coverage_card(store, shown)
    with right:
        _residual_card(store, shown, units)
    if not shown.everything:
        _forward_card(store, shown.run)
    worst_heads.card(store, shown)


def _nothing(store: OwnerView, shown: Scope) -> None:
    if shown.runs.empty and shown.everything:
        states.empty(*shown.nothing)
        return
    if shown.runs.empty:
        states.empty(
            "Nothing to audit",
            [
                f"{shown.run.tokens:,} tokens are below break-even, the length from which routing is predicted to pay: "
                "dense attention ran untouched, so nothing was lost.",
            ],
        )
        return
    if not shown.everything and shown.run.sparse_units == 0:
        states.empty(
            "Nothing to audit", ["Every unit of this run is dense: it reads all keys, so nothing was lost."]
        )
        return
    states.empty(
        "Not audited",
        [
            "The dense audit was off, so the true retained mass and the error are unknown. The audit compares 512 "
            "random rows of every head with dense attention.",
            "Run it again with audit “rows”; the certificates themselves are on the Head page.",
        ],
    )
    navigate.link(
        "Run again with an audit",
        "new",
        **{"from": queries.short_id(store, shown.run.run_id), "audit": "rows"},
    )
    if not shown.everything:
        output_claim.certificates_card(store, shown)


def _notes(run: RunRow, everything: bool, executed_error: float) -> None:
    """What limits the claims of this run: a kernel that wrote something else, drift, a calibration used by force; and
    what the full audit found. executed_error: the run's largest, NaN where nothing was compared."""
    if everything:
        return
    if deviates(executed_error, run.dtype):
        states.problem(
            "The kernel’s output is not that of the chosen plan",
            [
                f"One row lies {executed_error:.1e} from the one that the audit rebuilt, relative to the values "
                f"it read; rounding in {run.dtype} explains at most {EXECUTED_TOLERANCE[run.dtype]:.0e}.",
                "The claims below are about the chosen plan, not about this output. Do not use it.",
            ],
        )
    if run.drift_alarm:
        states.problem(
            "Drift alarm: this prompt does not look like the calibration's prompts",
            [
                f"Only {numbers.share(run.drift_p)} of the calibration prompts of {run.calibration} have attention "
                f"statistics as unusual as this one's (distance {numbers.mass(run.drift_distance, 1)}). The conformal "
                "claim holds for prompts like the calibration's, so do not rely on it here.",
                "The in-prompt certificate and the row statement do not depend on the calibration and still hold.",
            ],
        )
    if run.calibration_mismatch:
        states.problem(
            "The calibration does not fit this run",
            [f"It was used all the same, as asked: {run.calibration_mismatch}. The conformal claim is void."],
        )
    if run.top1_agreement is not None:
        facts = [
            f"next token {'agrees with' if run.top1_agreement == 1 else 'differs from'} dense"
            if run.batch == 1
            else f"next tokens agree with dense for {numbers.share(run.top1_agreement, 0)} of the batch",
            f"KL to dense {numbers.kl(run.kl_nats)}",
            f"logits differ by {numbers.share(run.logit_error, 2)}",
        ]
        st.html(f'<div class="rs-sub"><b>Answer check</b>: {escape(", ".join(facts))}.</div>')


def _kpis(coverage: pd.DataFrame, gaps: pd.Series) -> None:
    violations = int(coverage["violations"].sum())
    rows = int(coverage["audit_rows"].sum())
    boxes = [
        ("Audited", f"{int(coverage['units'].sum()):,}", f"sparse units, {rows:,} rows", "audit"),
        ("Output error", numbers.mass(gaps["mean_error"], 4), "relative, mean over units", "error"),
        ("Worst row", numbers.mass(gaps["max_error"], 3), "relative error of one row", "error"),
        ("Bounds violated", f"{violations:,}", f"of {rows:,} rows; must be 0", "bounds"),
        (
            "Tight bound",
            numbers.times(gaps["tight_looseness"]),
            f"the worst row's error; 95th pct. {numbers.times(gaps['tight_looseness_p95'])}",
            "tight",
        ),
        (
            "Paper's bound",
            numbers.times(gaps["paper_looseness"]),
            f"the worst row's error; 95th pct. {numbers.times(gaps['paper_looseness_p95'])}",
            "paper_bound",
        ),
    ]
    st.html(facts.boxes_html(boxes))


def _error_card(store: OwnerView, shown: Scope, units: pd.DataFrame, gaps: pd.Series) -> None:
    theme = design.current_theme()
    few = figures.drawn(units)
    with st.container(border=True, key="card-error", gap="xsmall"):
        st.html('<div class="rs-h">Error against its bounds</div>')
        drawn = store.made(
            "audit error",
            [theme.name],
            lambda: figures.error_figure(few, theme),
            of=shown.run_ids,
        )
        _follow(store, plot.show(drawn, f"audit-error-{shown.name}", "Error against its bounds", picks=True))
        st.html(figures.pattern_legend(few, theme, "○ the paper's bound of the same unit", "dotted: y = x"))
        exports.chart_foot(
            f"error-bound-{shown.name}",
            f"{_drawn(few, units, int(gaps['units']))} · error relative to the row's dense output, worst of the "
            f"audited rows; bounds likewise · click a point to open its head · source: audit of {shown.words}",
            units,
            "error",
            chart="card-error",
        )


def _mass_card(store: OwnerView, shown: Scope, units: pd.DataFrame) -> None:
    theme = design.current_theme()
    known = units.dropna(subset=["lower_mass"])
    few = figures.drawn(known)
    below = int((known["covered"] == False).sum())  # noqa: E712  NULL is not below
    # One line needs one meaning: under the policy priced it is the floor of each head.
    priced = shown.runs["tau_layer"].notna()
    one_tau = shown.runs["tau"].nunique() == 1 and priced.nunique() == 1
    name = "τ head, a floor," if priced.all() else "τ"
    with st.container(border=True, key="card-mass", gap="xsmall"):
        st.html('<div class="rs-h">Audited against certified retained mass</div>')
        tau = float(shown.runs["tau"].iloc[0]) if one_tau else None
        drawn = store.made(
            "audit mass",
            [theme.name],
            lambda: figures.mass_figure(few, tau, theme, name),
            of=shown.run_ids,
        )
        label = "Audited against certified retained mass"
        _follow(store, plot.show(drawn, f"audit-mass-{shown.name}", label, picks=True))
        told = f"below the dotted line y = x: {below:,} of {len(known):,}"
        if below:
            told += f"; {numbers.may_miss(shown.run.confidence)}"
        st.html(figures.pattern_legend(few, theme, told))
        exports.chart_foot(
            f"mass-certified-{shown.name}",
            f"{_drawn(few, known, len(known))} · share of 1, mean over the body; audited over "
            f"{_audited(shown, units)} · source: audit and "
            f"head_choice of {shown.words}",
            known,
            "mass",
            chart="card-mass",
        )


def _audited(shown: Scope, units: pd.DataFrame) -> str:
    """Over which rows; a full audit draws none."""
    if (shown.runs["audit_depth"] == "full").all():
        return "all body rows"
    drawn = f"{int(units['audit_rows'].max())} random rows, standard error about .003"
    return f"{drawn}, or all" if (shown.runs["audit_depth"] == "full").any() else drawn


def _drawn(few: pd.DataFrame, units: pd.DataFrame, total: int) -> str:
    text = f"n = {numbers.several(len(units), 'unit')}" + (
        f" sampled from {total:,}" if total > len(units) else ""
    )
    return text if len(few) == len(units) else f"{text}, {len(few):,} drawn"


def _follow(store: OwnerView, told: Sequence[object] | None) -> None:
    """A click on a unit opens its head. told: of its point, the unit first."""
    if told is not None:
        run_id, *place = told[: len(figures.UNIT)]
        unit = queries.Unit(str(run_id), *(int(str(value)) for value in place))
        way_back.remember("audit")
        navigate.go("head", **view.address_of(store, unit))


def _coverage_card(store: OwnerView, shown: Scope) -> None:
    """Coverage by group over prompts: one prompt says little, so all runs of these weights are shown."""
    runs = shown.runs if shown.everything else shown.same
    runs = runs[runs["confidence"] == shown.run.confidence]
    claim, by = switch.chosen("claim", claims.CLAIMS), switch.chosen("by", claims.GROUPS)
    theme, ids = design.current_theme(), list(runs["run_id"])

    def made() -> tuple[pd.DataFrame, pd.DataFrame, dict[str, Any]]:
        rows = claims.per_prompt(audit_queries.coverage(store, ids), runs, claim, by)
        groups = prompt_stats.by_group(rows, "group", "value")
        return rows, groups, {} if groups.empty else _coverage_figure(shown, rows, groups, theme)

    here = None if shown.everything else shown.run.run_id
    rows, groups, drawn = store.made(
        "audit coverage", [claim, by, here, shown.run.confidence, theme.name], made, of=ids
    )
    with st.container(border=True, key="card-coverage", gap="xsmall"):
        over = "" if shown.everything else ", all runs of these weights"
        st.html(f'<div class="rs-h">Coverage of selected sparse units{over}{glossary.mark("coverage")}</div>')
        with st.container(horizontal=True, gap="small", vertical_alignment="center"):
            switch.buttons("claim", {key: value.name for key, value in claims.CLAIMS.items()}, claim)
            switch.buttons("by", claims.GROUPS, by)
        if groups.empty:
            st.html(
                '<div class="rs-sub">Not measured: no stored run of these weights makes this claim and was audited.'
                "</div>"
            )
            return
        if claim == "conformal" and (void := drift_note.of_several(runs)):
            st.html(void)
        plot.show(drawn, "audit-coverage", f"{claims.CLAIMS[claim].name}, coverage by {by}")
        exports.chart_foot(
            f"coverage-{claim}-by-{by}-{shown.name}",
            f"n = {numbers.several(rows['run_id'].nunique(), 'audited run')} of "
            f"{numbers.several(rows['prompt_sha256'].nunique(), 'prompt')}, model "
            f"{shown.run.model}, {share_figure.dots_text(len(rows))} · share of a prompt's units; "
            "diamond: mean over prompts; bar: 95 % interval, resampled by prompt · source: audit",
            groups,
            "coverage",
            chart="audit-coverage",
        )


def _coverage_figure(
    shown: Scope, rows: pd.DataFrame, groups: pd.DataFrame, theme: design.Theme
) -> dict[str, Any]:
    nominal = f"nominal {numbers.share(shown.run.confidence, 0)}"
    reference = share_figure.Reference(shown.run.confidence, nominal)
    return share_figure.figure(groups, rows, reference, theme, None if shown.everything else shown.run.run_id)


def _residual_card(store: OwnerView, shown: Scope, units: pd.DataFrame) -> None:
    theme = design.current_theme()

    def made() -> tuple[pd.DataFrame, dict[str, Any]]:
        bins = figures.residual_bins(units["residual"])
        return bins, figures.residual_figure(bins, _deltas(shown, units), theme)

    bins, drawn = store.made("audit residuals", [theme.name], made, of=shown.run_ids)
    with st.container(border=True, key="card-residual", gap="xsmall"):
        st.html(
            f'<div class="rs-h">Gate statistic g: the probe’s minus the audited one{glossary.mark("residual")}</div>'
        )
        plot.show(drawn, "audit-residuals", "Gate statistic, the probe’s minus the audited one")
        claimed = units.dropna(subset=["delta"])
        if len(claimed):
            beyond = float((claimed["residual"] > claimed["delta"]).mean())
            text = f"{numbers.share(beyond)} of {len(claimed):,} units with a conformal claim lie beyond their δ."
            if void := drift_note.of_several(shown.runs):
                st.html(void)
        else:
            text = "No δ: these runs used no calibration that fits, so no conformal claim was made."
        st.html(
            f'<div class="rs-note">{text} A residual is exactly 0 where the recent rows decide g: the probe reads '
            "all of them.</div>"
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
