"""Fallbacks: which certificates failed, what replaced the plan, what that cost, and whether the rate is a failure."""

from __future__ import annotations

import json
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.fallbacks import event_log, rate_figure
from routesparse.app.shell import scope, switch, view, way_back
from routesparse.app.shell.access import access
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import (
    design,
    exports,
    facts,
    glossary,
    layer_words,
    numbers,
    plot,
    prompt_stats,
    share_figure,
    states,
    tables,
)
from routesparse.app.ui.plain_text import visible
from routesparse.engine.config import RouterConfig
from routesparse.engine.rows import OUTCOMES, RunRow
from routesparse.engine.store import fallback_queries
from routesparse.engine.store.owner_view import OwnerView

_MEASURES = {"units": "By count", "time": "By time"}
_KIND_NAMES = {"expanded": "expanded by fallback", "kept": "as the router chose, sparse"}
_MEASURE_WORDS = {"units": "units", "time": "predicted kernel time"}


def render() -> None:
    """Draw the page."""
    way_back.restore("fallbacks")
    store = access().store
    shown = scope.open_scope(store, "Fallbacks")
    if shown is None:
        return
    if shown.runs.empty:
        _nothing(shown)
        return
    limit = _limit(shown.run)
    kinds = fallback_queries.kinds_by_layer(store, shown.run_ids)
    if kinds.empty:  # its decisions were lost
        _nothing(shown)
        return
    paid = fallback_queries.paid_by_layer(store, shown.run_ids)
    certificates = fallback_queries.layer_certificates(store, shown.run_ids)
    _banner(shown, kinds, certificates, limit)
    _kpis(store, shown, kinds, paid, certificates)
    measure = switch.chosen("by", _MEASURES)
    left, right = st.columns([1.35, 1], gap="small")
    with left:
        _layers_card(store, shown, kinds, limit, measure)
    with right:
        _kinds_card(store, shown, kinds, paid, limit)
    left, right = st.columns(2, gap="small")
    with left:
        _groups_card(store, shown, "domain", limit)
    with right:
        _groups_card(store, shown, "length", limit)
    event_log.card(store, shown, int(paid["events"].sum()), int(kinds["uncertified"].sum()))


def _nothing(shown: Scope) -> None:
    run = shown.run
    if shown.everything:
        states.empty(*shown.nothing)
        return
    below = [
        f"{run.tokens:,} tokens are below break-even, the length from which routing is predicted to pay: dense "
        "attention ran untouched, so nothing could fall back.",
        "Analyse a longer prompt, or look at all runs of these weights.",
    ]
    states.undecided(run.routed, below)


def _limit(run: RunRow) -> float:
    """The rate above which the paper calls it a failure: from the address, else as the run was configured."""
    text = st.query_params.get("limit", "")
    if text.isascii() and text.isdigit() and int(text) <= 100:
        return int(text) / 100
    return _own_limit(run)


def _own_limit(run: RunRow) -> float:
    """The one that its verdict judges by."""
    return float(json.loads(run.config_json).get("fallback_limit", RouterConfig.fallback_limit))


def _banner(shown: Scope, kinds: pd.DataFrame, certificates: pd.DataFrame, limit: float) -> None:
    if certificates["uncertified"].any():
        told = layer_words.uncertified(certificates, certificates["uncertified"], shown.everything)
        states.problem(told, [glossary.TERMS["uncertified_layers"]])
    missed = int(kinds["uncertified"].sum())
    if missed:
        states.problem(
            numbers.uncertified(missed, int(kinds["units"].sum())),
            [glossary.TERMS["uncertified"], "Raise Tℓ, or choose the policy certified."],
        )
    rate = _share(kinds, "dense by fallback", "units")
    if rate > limit:
        own = _own_limit(shown.run)
        # The verdict stands right above.
        other = (
            [
                "This judges the fallbacks, by the limit set below; the verdict above judges the answer, and the "
                f"fallbacks by the run’s own limit, {numbers.share(own, 0)}."
            ]
            if own != limit and not shown.everything
            else []
        )
        states.problem(
            f"Failure: {numbers.share(rate)} of the units became dense by fallback, the limit is "
            f"{numbers.share(limit, 0)}",
            [
                *other,
                "The paper calls a high fallback rate a failure, not a safe result: quality is kept, the speedup is "
                "lost.",
                "Lower τ layer or the price, so that the first plan reaches its layer’s certificate; or accept dense "
                "attention for such prompts."
                if len(certificates)
                else "Raise λ or choose a calibration of this domain, so that fewer candidates are tested in vain; "
                "allow larger budgets; or accept dense attention for such prompts.",
            ],
        )


def _kpis(
    store: OwnerView, shown: Scope, kinds: pd.DataFrame, paid: pd.DataFrame, certificates: pd.DataFrame
) -> None:
    budgets = fallback_queries.layer_budgets(store, shown.run_ids)
    limited = budgets["limit_us"].notna()
    total = kinds["kernel_us"].sum()
    boxes = []
    for kind, term in (
        ("dense by fallback", "fallback"),
        ("expanded", "expanded"),
        ("dense by the router", "dense_router"),
    ):
        count = int(kinds.loc[kinds["kind"] == kind, "units"].sum())
        boxes.append(
            (
                kind.capitalize(),
                numbers.share(_share(kinds, kind, "units")),
                f"{numbers.several(count, 'unit')} · {numbers.share(_share(kinds, kind, 'kernel_us'))} of "
                "predicted time",
                term,
            )
        )
    boxes.append(
        (
            "Paid for fallback",
            numbers.micros(paid["paid_us"].sum()),
            f"{numbers.share(paid['paid_us'].sum() / total if total else None)} of predicted kernel time",
            "paid",
        )
    )
    if len(certificates):
        raised = certificates["raised"]
        boxes.append(
            (
                "Raised layers",
                numbers.NOT_MEASURED
                if raised.isna().all()
                else f"{int((raised > 0).sum())} of {len(certificates)}",
                "climbed because the layer’s certificate failed",
                "raised",
            )
        )
        boxes.append(
            (
                "Uncertified layers",
                f"{int(certificates['uncertified'].sum())}",
                _least(certificates["lower_mass"]),
                "uncertified_layers",
            )
        )
    over = int(budgets["over_budget"].sum())
    boxes.append(
        (
            "Over budget",
            f"{over} of {int(limited.sum())}" if limited.any() else "no limit",
            "layers whose plan exceeds Tℓ" if limited.any() else "these runs set no Tℓ",
            "over_budget",
        )
    )
    missed = int(kinds["uncertified"].sum())
    boxes.append(
        (
            "Uncertified",
            f"{missed:,}",
            f"of {numbers.several(int(kinds['units'].sum()), 'unit')}",
            "uncertified",
        )
    )
    unmet = kinds["unmet"]
    if not len(certificates):
        boxes.append(
            (
                "Unmet",
                numbers.NOT_MEASURED if unmet.isna().all() else f"{int(unmet.sum()):,}",
                "escalations that Tℓ left no time for",
                "unmet",
            )
        )
    st.html(facts.boxes_html(boxes))


def _least(masses: pd.Series) -> str:
    known = masses.dropna()
    return "all layers dense" if known.empty else f"least certified mean {numbers.bound(known.min())}"


def _share(kinds: pd.DataFrame, kind: str, column: str) -> float:
    total = kinds[column].sum()
    return float(kinds.loc[kinds["kind"] == kind, column].sum() / total) if total else 0.0


def _layers_card(store: OwnerView, shown: Scope, kinds: pd.DataFrame, limit: float, measure: str) -> None:
    theme = design.current_theme()

    def made() -> tuple[pd.DataFrame, dict[str, Any]]:
        rows = _by_layer(kinds, "units" if measure == "units" else "kernel_us")
        return rows, rate_figure.by_layer(rows, _MEASURE_WORDS[measure], theme)

    rows, drawn = store.made("fallbacks by layer", [measure, theme.name], made, of=shown.run_ids)
    with st.container(border=True, key="card-layers", gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.html('<div class="rs-h">Rate by layer</div>', width="content")
            switch.buttons("by", _MEASURES, measure)
        plot.show(drawn, "fallback-layers", "Fallback rate by layer")
        st.html(rate_figure.legend(theme, limit, bool(rows["uncertified"].any())))
        exports.chart_foot(
            f"fallbacks-by-layer-{shown.name}",
            f"n = {numbers.several(int(kinds['units'].sum()), 'unit')} · share of a layer's "
            f"{_MEASURE_WORDS[measure]} · source: head_choice of {shown.words}",
            rows,
            "layers",
            chart="fallback-layers",
        )


def _by_layer(kinds: pd.DataFrame, column: str) -> pd.DataFrame:
    """All runs of the scope together: units and planned time per layer and kind, and their share of the layer."""
    rows = kinds.groupby(["layer", "kind"], as_index=False)[["units", "kernel_us", "uncertified"]].sum()
    return rows.assign(share=rows[column] / rows.groupby("layer")[column].transform("sum"))


def _kinds_card(
    store: OwnerView, shown: Scope, kinds: pd.DataFrame, paid: pd.DataFrame, limit: float
) -> None:
    """The four kinds in figures, which bars show only roughly."""
    with st.container(border=True, key="card-kinds", gap="xsmall"):
        st.html('<div class="rs-h">How the units ended up</div>')
        st.html(store.made("fallback kinds", [], lambda: _kinds_html(kinds), of=shown.run_ids))
        st.html(
            '<div class="rs-note">A unit that was expanded and then became dense counts as dense by fallback. '
            f"Failed certificates: {_events(paid)}. Tail rows and prompts below break-even are dense "
            "by design and not counted.</div>"
        )
        st.session_state["limit-choice"] = round(100 * limit)
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="limit-row"):
            st.html(
                f'<div class="rs-sub">Limit for dense by fallback, %{glossary.mark("fallback_limit")}</div>',
                width="content",
            )
            st.number_input(
                "Limit, %",
                0,
                100,
                key="limit-choice",
                label_visibility="collapsed",
                width=120,
                on_change=lambda: view.write(limit=st.session_state["limit-choice"]),
            )


def _kinds_html(kinds: pd.DataFrame) -> str:
    body = []
    for kind in OUTCOMES:
        rows = kinds[kinds["kind"] == kind]
        body.append(
            f'<tr><td class="l">{_KIND_NAMES.get(kind, kind)}</td><td>{int(rows["units"].sum()):,}</td>'
            f"<td>{numbers.share(_share(kinds, kind, 'units'))}</td>"
            f"<td>{numbers.micros(rows['kernel_us'].sum())}</td>"
            f"<td>{numbers.share(_share(kinds, kind, 'kernel_us'))}</td></tr>"
        )
    return tables.framed(
        '<tr><th class="l">kind</th><th>units</th><th>of units</th><th>predicted time</th>'
        f"<th>of time</th></tr>{''.join(body)}"
    )


def _events(paid: pd.DataFrame) -> str:
    """How many, and how many of them were a layer's."""
    total, of_layers = int(paid["events"].sum()), int(paid["layer_events"].sum())
    if not of_layers:
        return f"{total:,}"
    return f"{total:,}, of which {of_layers:,} of heads that climbed with their layer"


def _groups_card(store: OwnerView, shown: Scope, by: str, limit: float) -> None:
    """Dense by fallback per prompt, by domain or length, over all runs of these weights."""
    runs = shown.runs if shown.everything else shown.same
    theme, ids = design.current_theme(), list(runs["run_id"])
    here = None if shown.everything else shown.run.run_id

    def made() -> tuple[pd.DataFrame, dict[str, Any]]:
        per_run = _per_run(runs, by)
        groups = prompt_stats.by_group(per_run, "group", "value")
        reference = share_figure.Reference(limit, f"limit {numbers.share(limit, 0)}")
        return groups, share_figure.figure(groups, per_run, reference, theme, here)

    groups, drawn = store.made("fallbacks by group", [by, limit, here, theme.name], made, of=ids)
    with st.container(border=True, key=f"card-by-{by}", gap="xsmall"):
        over = "" if shown.everything else ", all runs of these weights"
        name = by if by == "domain" else "length in tokens"
        st.html(f'<div class="rs-h">Dense by fallback, by {name}{over}</div>')
        plot.show(drawn, f"fallback-{by}", f"Dense by fallback, by {by}")
        exports.chart_foot(
            f"fallbacks-by-{by}-{shown.name}",
            f"n = {numbers.several(len(runs), 'run')} of model {shown.run.model}, "
            f"{share_figure.dots_text(len(runs))}"
            + ("" if shown.everything else ", this run filled")
            + " · share of units; diamond: mean; bar: 95 % interval, resampled by prompt · source: run",
            groups,
            f"by-{by}",
            chart=f"fallback-{by}",
        )


def _per_run(runs: pd.DataFrame, by: str) -> pd.DataFrame:
    """Of each run its group and its share of units that became dense by fallback."""
    return pd.DataFrame(
        {
            "group": runs["domain"].fillna("no domain")
            if by == "domain"
            else runs["tokens"].map(scope.length_bucket),
            "value": runs["dense_fallback_units"] / runs["units"].where(runs["units"] > 0),
            "label": runs["prompt_name"].map(visible) + " · " + runs["tokens"].map("{:,} tokens".format),
            "run_id": runs["run_id"],
            "prompt_sha256": runs["prompt_sha256"],
            "units": runs["units"],
            "order": runs["tokens"] if by == "length" else 0,
        }
    ).sort_values(["order", "group"], kind="stable")
