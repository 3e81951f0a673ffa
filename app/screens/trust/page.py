"""Trust: the predicted loss; then its evidence, what is bounded, what failed or fell back, what the audit found."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.trust import (
    certificate,
    details,
    fallen,
    figures,
    loss_card,
    output_claim,
    worst_heads,
)
from routesparse.app.shell import address, navigate, scope, view
from routesparse.app.shell.access import access
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import design, elements, exports, numbers, plot, states
from routesparse.engine.errors import InputError
from routesparse.engine.export import run_figures
from routesparse.engine.rows import EXECUTED_TOLERANCE, RunRow, deviates
from routesparse.engine.store import audit_queries, certificate_queries, fallback_queries, queries
from routesparse.engine.store.owner_view import OwnerView

MOST_UNITS = 20_000


@address.names("run layer head batch tour scope domain details claim by metric")
def render() -> None:
    """Draw the page of the run or of the certificate that the address names."""
    navigate.restore("trust")
    store = access().store
    certified = _certificate(store)
    if certified is not None:
        certificate.draw(store, certified)
        return
    shown = scope.open_scope(store, "Trust")
    if shown is None:
        return
    if shown.everything:
        # A share of covered units is read against one nominal level.
        alike = shown.runs[shown.runs["confidence"] == shown.run.confidence]
        shown = Scope(shown.run, True, alike.reset_index(drop=True), shown.same)
    kinds = fallback_queries.kinds_by_layer(store, shown.run_ids)
    if kinds.empty:
        _nothing(store, shown)
        return
    _draw(store, shown, kinds)


def _certificate(store: OwnerView) -> str | None:
    """The certificate that is meant; None where a run is, or nothing that is stored."""
    named = st.query_params.get("run")
    if not named:
        return None if queries.newest(store) else certificate_queries.newest(store)
    try:
        queries.resolve(store, named)
    except InputError:
        try:
            return certificate_queries.resolve(store, named)
        except InputError:
            return None  # several are meant: the page says that no run is
    return None


def _draw(store: OwnerView, shown: Scope, kinds: pd.DataFrame) -> None:
    coverage = audit_queries.coverage(store, shown.run_ids)
    gaps = audit_queries.gaps(store, shown.run_ids).iloc[0]
    paid = fallback_queries.paid_by_layer(store, shown.run_ids)
    certificates = fallback_queries.layer_certificates(store, shown.run_ids)
    audited = not coverage.empty
    problems = fallen.problems(shown, kinds, certificates)
    executed_error = coverage["executed_error"].max() if audited else float("nan")
    if shown.everything:
        loss_card.scatter(store, shown)
    else:
        loss_card.card(store, shown)
        problems = _void(shown.run, executed_error) + problems
    if problems:
        states.problem("What speaks against it", problems)
    st.html(elements.heading("Evidence: kept mass", "retained_mass"))
    if not shown.everything:
        told = escape(certified(shown.run, kinds, certificates, executed_error))
        for word in ("Bounded", "Not bounded", "Not certified"):
            told = told.replace(word, f"<b>{word}</b>")
        st.html(
            f'<div class="rs-sub">{told} This mean does not tell runs that lose their answer from others.</div>'
        )
    if fallen.loss_speaks(shown):
        for line in fallen.low_bounds(shown, kinds, certificates):
            elements.sub(line)
    _kpis(coverage, gaps, kinds, certificates)
    fallen.card(store, shown, int(paid["events"].sum()), int(kinds["uncertified"].sum()))
    if audited:
        worst_heads.card(store, shown)
    else:
        _unaudited(store, shown)
    opened = st.expander(
        "Details: bounds, claims, certificates of this prompt",
        key="details",
        on_change="rerun",
        bind="query-params",
    )
    if opened.open:
        with opened:
            if audited:
                units = audit_queries.units(store, shown.run_ids, MOST_UNITS)
                _scatters(store, shown, units, int(gaps["units"]))
            if not shown.everything:
                output_claim.card(store, shown, coverage, gaps)
            details.draw(store, shown, coverage, gaps, audited, kinds, paid)


def certified(run: RunRow, kinds: pd.DataFrame, certificates: pd.DataFrame, executed_error: float) -> str:
    """In one sentence what is certified of what; in another what is not.

    certificates: rows of layer_certificates; executed_error: the largest found, NaN where nothing was compared.
    """
    units, stored = int(kinds["units"].sum()), kinds["kind"].isin(("kept", "expanded"))
    if units < run.units:
        return (
            f"{run.units - units:,} of {run.units:,} decisions are not stored: nothing is said of the others."
        )
    sparse = int(kinds.loc[stored, "units"].sum())
    if deviates(executed_error, run.dtype):
        return "Not certified: this run’s output, which is not that of the plan that was certified."
    if not sparse:
        return "All heads read every key: there is nothing to certify."
    level = numbers.share(run.confidence, 0)
    one = run.segments * run.batch == 1
    what = f"{sparse - int(kinds['uncertified'].sum()):,} of "
    what += numbers.several(sparse, "sparse head" if one else "sparse unit")
    what += f" at least {numbers.threshold(run.tau)}"
    if run.tau_layer is not None:
        held = int((certificates["lower_mass"].notna() & ~certificates["uncertified"]).sum())
        of = numbers.several(held + int(certificates["uncertified"].sum()), "sparse layer")
        what = f"{held:,} of {of} at least {numbers.threshold(run.tau_layer)}, {what}"
    what = what.replace(" at least", " keep at least", 1)
    return (
        f"Bounded with {level} confidence, each alone: {what}, on average over rows. Not bounded: a single row, "
        "all of them together, the answer."
    )


def _nothing(store: OwnerView, shown: Scope) -> None:
    if shown.everything and shown.runs.empty:
        states.empty(*shown.nothing)
        return
    below = [
        f"{shown.run.tokens:,} tokens are below break-even, the length from which routing is predicted to pay: dense "
        "attention ran untouched, so nothing was lost and nothing could fall back.",
        "Analyse a longer prompt, or look at all runs of these weights.",
    ]
    states.undecided(shown.run.routed, below)
    if not shown.everything:
        output_claim.certificates(store, shown)


def _unaudited(store: OwnerView, shown: Scope) -> None:
    with elements.card("not-audited"):
        if int(shown.runs["sparse_units"].sum()) == 0:
            elements.sub("Nothing to audit: every unit is dense and reads all keys, so nothing was lost.")
            return
        st.html(
            '<div class="rs-sub"><b>Not audited</b>: the true retained mass and the error are unknown. An audit '
            "compares 512 random rows of every head with dense attention.</div>"
        )
        again = {"from": queries.short_id(store, shown.run.run_id), "audit": "rows"}
        navigate.link("Run again with an audit", "new", **again)


def _void(run: RunRow, executed_error: float) -> list[str]:
    """What limits the claims of this run: a kernel that wrote something else, drift, a calibration used by force."""
    found = []
    if deviates(executed_error, run.dtype):
        found.append(
            f"The kernel’s output is not that of the chosen plan: one row lies {executed_error:.1e} from the one that "
            f"the audit rebuilt, relative to the values it read; rounding in {run.dtype} explains at most "
            f"{EXECUTED_TOLERANCE[run.dtype]:.0e}. The claims below are about the plan, not about this output. Do not "
            "use it."
        )
    if run.drift_alarm:
        found.append(
            f"Drift alarm: only {numbers.share(run.drift_p)} of the prompts of calibration {run.calibration} have "
            f"attention as unusual as this one's (distance {numbers.mass(run.drift_distance, 1)}). Do not rely on the "
            "conformal claim here; the in-prompt certificate and the row statement still hold."
        )
    if run.calibration_mismatch:
        found.append(
            f"The calibration does not fit this run, and was used all the same, as asked: {run.calibration_mismatch}. "
            "The conformal claim is void."
        )
    return found


def _kpis(coverage: pd.DataFrame, gaps: pd.Series, kinds: pd.DataFrame, certificates: pd.DataFrame) -> None:
    rows = int(coverage["audit_rows"].sum())
    audited = len(coverage) > 0
    violations = f"{int(coverage['violations'].sum()):,}" if audited else numbers.NOT_MEASURED
    fell = int(kinds.loc[kinds["kind"] == "dense by fallback", "units"].sum())
    share = numbers.share(fallen.share(kinds, "dense by fallback", "units"))
    missed, layers = int(kinds["uncertified"].sum()), int(certificates["uncertified"].sum())
    sparse = int(kinds.loc[kinds["kind"].isin(("kept", "expanded")), "units"].sum())
    uncertified = run_figures.uncertified(missed, sparse, layers, len(certificates))
    boxes = [
        (*uncertified, "uncertified"),
        ("Dense by fallback", share, numbers.several(fell, "unit"), "fallback"),
        ("Output error", numbers.mass(gaps["mean_error"], 4), "relative, mean over audited units", "error"),
        ("Worst row", numbers.mass(gaps["max_error"], 3), "relative error", "error"),
        ("Bounds violated", violations, f"of {rows:,} rows; must be 0", "bounds"),
        ("Audited", f"{int(coverage['units'].sum()):,}", f"sparse units, {rows:,} rows", "audit"),
    ]
    st.html(elements.boxes_html(boxes))


def _scatters(store: OwnerView, shown: Scope, units: pd.DataFrame, total: int) -> None:
    """Audited against foretold: errors beside their bounds, masses beside their certificates. total: audited units."""
    theme, known = design.current_theme(), units.dropna(subset=["lower_mass"])
    few, few_known = figures.drawn(units), figures.drawn(known)
    # One line needs one meaning: under the policy priced it is the floor of each head.
    priced = shown.runs["tau_layer"].notna()
    one_tau = shown.runs["tau"].nunique() == 1 and priced.nunique() == 1
    tau = float(shown.runs["tau"].iloc[0]) if one_tau else None
    name = "τ head, a floor," if priced.all() else "τ"
    below = int((known["covered"] == False).sum())  # noqa: E712  NULL is not below
    told = f"below the dotted line y = x: {below:,} of {len(known):,}"
    told += f"; {numbers.may_miss(shown.run.confidence)}" if below else ""
    left, right = st.columns(2, gap="small")
    with left:
        _scatter(
            store,
            shown,
            "error",
            "Error against its bounds",
            lambda: figures.error_figure(few, theme),
            figures.pattern_legend(few, theme, "○ the paper's bound of the same unit", "dotted: y = x"),
            f"{_drawn(few, units, total)} · error relative to the row's dense output, worst of the audited rows; "
            f"bounds likewise · click a point to open its head · source: audit of {shown.words}",
            units,
        )
    with right:
        _scatter(
            store,
            shown,
            "mass",
            "Audited against certified retained mass",
            lambda: figures.mass_figure(few_known, tau, theme, name),
            figures.pattern_legend(few_known, theme, told),
            f"{_drawn(few_known, known, len(known))} · share of 1, mean over the body; audited over "
            f"{_audited(shown, units)} · source: audit and head_choice of {shown.words}",
            known,
        )


def _scatter(
    store: OwnerView,
    shown: Scope,
    key: str,
    title: str,
    make: Callable[[], dict[str, Any]],
    legend: str,
    note: str,
    rows: pd.DataFrame,
) -> None:
    """A card of points; a click on a unit opens its head."""
    with elements.card(key, title):
        drawn = store.made(f"audit {key}", [design.current_theme().name], make, of=shown.run_ids)
        told = plot.show(drawn, f"audit-{key}-{shown.name}", title, picks=True)
        if told is not None:
            run_id, *place = told[: len(figures.UNIT)]
            unit = queries.Unit(str(run_id), *(int(str(value)) for value in place))
            navigate.remember("trust")
            navigate.go("map", **view.address_of(store, unit))
        st.html(legend)
        exports.chart_foot(f"{key}-{shown.name}", note, rows, key, chart=f"card-{key}")


def _audited(shown: Scope, units: pd.DataFrame) -> str:
    """Over which rows; a full audit draws none."""
    if (shown.runs["audit_depth"] == "full").all():
        return "all body rows"
    drawn = f"{int(units['audit_rows'].max())} random rows, standard error about .003"
    return f"{drawn}, or all" if (shown.runs["audit_depth"] == "full").any() else drawn


def _drawn(few: pd.DataFrame, units: pd.DataFrame, total: int) -> str:
    sampled = f" sampled from {total:,}" if total > len(units) else ""
    text = f"n = {numbers.several(len(units), 'unit')}{sampled}"
    return text if len(few) == len(units) else f"{text}, {len(few):,} drawn"
