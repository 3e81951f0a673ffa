"""Fallbacks: which certificates failed, what replaced the plan, what that cost, and whether the rate is a failure."""

from __future__ import annotations

import json
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app import (
    design,
    exports,
    fallback_figure,
    glossary,
    navigate,
    numbers,
    prompt_stats,
    scope,
    share_figure,
    states,
    view,
    way_back,
)
from routesparse.app.access import access
from routesparse.app.scope import Scope
from routesparse.engine.config import RouterConfig
from routesparse.engine.records import RunRow
from routesparse.engine.store import fallback_queries, queries
from routesparse.engine.store.duckdb_store import Store

MOST_EVENTS = 1000
_MEASURES = {"units": "By count", "time": "By time"}
_MEASURE_WORDS = {"units": "units", "time": "planned kernel time"}


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
    paid = fallback_queries.paid_by_layer(store, shown.run_ids)
    _banner(kinds, limit)
    _kpis(store, shown, kinds, paid)
    measure = _measure()
    left, right = st.columns([1.35, 1], gap="small")
    with left:
        _layers_card(shown, kinds, limit, measure)
    with right:
        _kinds_card(kinds, paid, limit)
    left, right = st.columns(2, gap="small")
    with left:
        _groups_card(shown, "domain", limit)
    with right:
        _groups_card(shown, "length", limit)
    _events_card(store, shown, int(paid["events"].sum()))


def _nothing(shown: Scope) -> None:
    run = shown.run
    if shown.everything:
        states.empty("No run passes the filter", ["Clear the domains above to see the others again."])
        return
    lines = ["The bundle holds no decisions. Analyse the prompt again."]
    if not run.routed:
        lines = [
            f"{run.tokens:,} tokens are below break-even: dense attention ran untouched, so nothing could fall back.",
            "Analyse a longer prompt, or look at all runs of these weights.",
        ]
    states.empty("Nothing was routed in this run", lines)


def _limit(run: RunRow) -> float:
    """The rate above which the paper calls it a failure: from the address, else as the run was configured."""
    text = st.query_params.get("limit", "")
    if text.isascii() and text.isdigit() and int(text) <= 100:
        return int(text) / 100
    return float(json.loads(run.config_json).get("fallback_limit", RouterConfig.fallback_limit))


def _banner(kinds: pd.DataFrame, limit: float) -> None:
    rate = _share(kinds, "dense by fallback", "units")
    if rate > limit:
        states.problem(
            f"Failure: {numbers.share(rate)} of the units became dense by fallback, the limit is "
            f"{numbers.share(limit, 0)}",
            [
                "The paper calls a high fallback rate a failure, not a safe result: quality is kept, the speedup is "
                "lost.",
                "Raise λ or pass a calibration of this domain, so that fewer candidates are tested in vain; allow "
                "larger budgets; or accept dense attention for such prompts.",
            ],
        )


def _kpis(store: Store, shown: Scope, kinds: pd.DataFrame, paid: pd.DataFrame) -> None:
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
                f"{count:,} units · {numbers.share(_share(kinds, kind, 'kernel_us'))} of planned time",
                term,
            )
        )
    boxes.append(
        (
            "Paid for fallback",
            numbers.micros(paid["paid_us"].sum()),
            f"{numbers.share(paid['paid_us'].sum() / total if total else None)} of planned kernel time",
            "paid",
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
    unmet = kinds["unmet"]
    boxes.append(
        (
            "Unmet",
            numbers.NOT_MEASURED if unmet.isna().all() else f"{int(unmet.sum()):,}",
            "escalations that Tℓ had no time for",
            "unmet",
        )
    )
    html = "".join(
        f"<div><span>{escape(name)}{glossary.mark(term)}</span>"
        f'<b class="{"none" if value in (numbers.NOT_MEASURED, "no limit") else ""}">{escape(value)}</b>'
        f"<small>{escape(note)}</small></div>"
        for name, value, note, term in boxes
    )
    st.html(f'<div class="rs-kpi">{html}</div>')


def _share(kinds: pd.DataFrame, kind: str, column: str) -> float:
    total = kinds[column].sum()
    return float(kinds.loc[kinds["kind"] == kind, column].sum() / total) if total else 0.0


def _measure() -> str:
    text = st.query_params.get("by", "units")
    return text if text in _MEASURES else "units"


def _layers_card(shown: Scope, kinds: pd.DataFrame, limit: float, measure: str) -> None:
    theme = design.current_theme()
    rows = _by_layer(kinds, "units" if measure == "units" else "kernel_us")
    with st.container(border=True, key="card-layers", gap="xsmall"):
        with st.container(horizontal=True, vertical_alignment="center", horizontal_alignment="distribute"):
            st.html('<div class="rs-h">Rate by layer</div>', width="content")
            st.session_state["by-choice"] = measure
            st.segmented_control(
                "Measure",
                list(_MEASURES),
                format_func=_MEASURES.__getitem__,
                key="by-choice",
                required=True,
                label_visibility="collapsed",
                on_change=lambda: view.write(by=st.session_state["by-choice"]),
            )
        st.plotly_chart(
            fallback_figure.by_layer(rows, limit, _MEASURE_WORDS[measure], theme),
            key="fallback-layers",
            theme=None,
            config=design.chart_config(f"fallbacks-by-layer-{shown.name}"),
        )
        st.html(fallback_figure.legend(theme))
        exports.chart_foot(
            f"fallbacks-by-layer-{shown.name}",
            f"n = {int(kinds['units'].sum()):,} units · share of a layer's {_MEASURE_WORDS[measure]} · source: "
            f"head_choice of {shown.words}",
            rows,
            "layers",
        )


def _by_layer(kinds: pd.DataFrame, column: str) -> pd.DataFrame:
    """All runs of the scope together: units and planned time per layer and kind, and their share of the layer."""
    rows = kinds.groupby(["layer", "kind"], as_index=False)[["units", "kernel_us"]].sum()
    return rows.assign(share=rows[column] / rows.groupby("layer")[column].transform("sum"))


def _kinds_card(kinds: pd.DataFrame, paid: pd.DataFrame, limit: float) -> None:
    """The four kinds in figures: what a bar cannot say exactly."""
    with st.container(border=True, key="card-kinds", gap="xsmall"):
        st.html('<div class="rs-h">Kept apart: who made a unit dense or dearer</div>')
        body = []
        for kind in fallback_queries.KINDS:
            rows = kinds[kinds["kind"] == kind]
            body.append(
                f'<tr><td class="l">{kind}</td><td>{int(rows["units"].sum()):,}</td>'
                f"<td>{numbers.share(_share(kinds, kind, 'units'))}</td>"
                f"<td>{numbers.micros(rows['kernel_us'].sum())}</td>"
                f"<td>{numbers.share(_share(kinds, kind, 'kernel_us'))}</td></tr>"
            )
        st.html(
            '<div class="rs-table"><table><tr><th class="l">kind</th><th>units</th><th>of units</th>'
            f"<th>planned</th><th>of time</th></tr>{''.join(body)}</table></div>"
        )
        st.html(
            '<div class="rs-note">A unit that was expanded and then became dense counts as dense by fallback. '
            f"Failed certificates: {int(paid['events'].sum()):,}. Tail rows and prompts below break-even are dense "
            "by design and not counted.</div>"
        )
        st.session_state["limit-choice"] = round(100 * limit)
        with st.container(horizontal=True, gap="small", vertical_alignment="center", key="limit-row"):
            st.html(
                f'<div class="rs-sub">Dense by fallback is a failure above, %{glossary.mark("fallback_limit")}</div>',
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


def _groups_card(shown: Scope, by: str, limit: float) -> None:
    """Dense by fallback per prompt, by domain or length, over all runs of these weights."""
    runs = shown.runs if shown.everything else shown.same
    per_run = pd.DataFrame(
        {
            "group": runs["domain"].fillna("no domain")
            if by == "domain"
            else runs["tokens"].map(scope.length_bucket),
            "value": runs["dense_fallback_units"] / runs["units"].where(runs["units"] > 0),
            "label": runs["prompt_name"].map(escape) + " · " + runs["tokens"].map("{:,} tokens".format),
            "run_id": runs["run_id"],
            "prompt_sha256": runs["prompt_sha256"],
            "units": runs["units"],
            "order": runs["tokens"] if by == "length" else 0,
        }
    ).sort_values(["order", "group"], kind="stable")
    groups = prompt_stats.by_group(per_run, "group", "value")
    with st.container(border=True, key=f"card-by-{by}", gap="xsmall"):
        st.html(
            f'<div class="rs-h">Dense by fallback, by {by if by == "domain" else "length in tokens"}</div>'
        )
        reference = share_figure.Reference(limit, f"limit {numbers.share(limit, 0)}")
        st.plotly_chart(
            share_figure.figure(
                groups,
                per_run,
                reference,
                design.current_theme(),
                None if shown.everything else shown.run.run_id,
            ),
            key=f"fallback-{by}",
            theme=None,
            config=design.chart_config(f"fallbacks-by-{by}-{shown.name}"),
        )
        exports.chart_foot(
            f"fallbacks-by-{by}-{shown.name}",
            f"n = {len(per_run)} runs of model {shown.run.model}, {share_figure.dots_text(len(per_run))}"
            + ("" if shown.everything else ", this run filled")
            + " · share of units; diamond: mean; bar: 95 % interval, resampled by prompt · source: run",
            groups,
            f"by-{by}",
        )


def _events_card(store: Store, shown: Scope, total: int) -> None:
    with st.container(border=True, key="card-events", gap="xsmall"):
        st.html(f'<div class="rs-h">Failed certificates, the dearest first{glossary.mark("fallback")}</div>')
        if not total:
            st.html(
                '<div class="rs-sub">Every certificate that was tested reached τ: nothing fell back.</div>'
            )
            return
        events = fallback_queries.events(store, shown.run_ids, MOST_EVENTS)
        table = _event_rows(events, shown.everything)
        picked = st.dataframe(
            table,
            column_config=_event_columns(),
            hide_index=True,
            height="auto" if len(table) <= 12 else 420,
            placeholder=numbers.NOT_MEASURED,
            on_select="rerun",
            selection_mode="single-cell",
            key=f"events-{shown.name}",
        )
        if picked.selection.cells:
            _open_head(store, events.iloc[picked.selection.cells[0][0]])
        drawn = f"{len(events):,} of {total:,}" if len(events) < total else f"{total:,}"
        exports.chart_foot(
            f"fallback-events-{shown.name}",
            f"n = {drawn} events · masses as share of 1, time as predicted · click a row to open its head · source: "
            f"fallback_event of {shown.words}",
            events,
            "events",
        )


def _event_rows(events: pd.DataFrame, with_run: bool) -> pd.DataFrame:
    def candidate(side: str) -> pd.Series:
        letters = events[f"{side}_pattern"].map(design.LETTERS)
        return letters + " · " + events[f"{side}_budget"]

    run = {"run": events["run_id"].map(queries.label), "prompt": events["prompt_name"]} if with_run else {}
    return pd.DataFrame(
        {
            **run,
            "layer": events["layer"],
            "head": events["head"],
            "segment": events["segment"] + 1,
            "test": events["test"],
            "tested": candidate("from"),
            "certified": events["lower_mass"],
            "tau": events["tau"],
            "deficit": events["deficit"],
            "became": events["kind"].map({"expand": "expanded", "dense": "dense"}),
            "to": candidate("to"),
            "paid": events["paid_us"],
        }
    )


def _event_columns() -> dict[str, Any]:
    column = st.column_config
    return {
        "run": column.TextColumn("Run", width=80),
        "prompt": column.TextColumn("Prompt", width=130),
        "layer": column.NumberColumn("Layer", width=60),
        "head": column.NumberColumn("Head", width=60),
        "segment": column.NumberColumn("Segment", width=70),
        "test": column.NumberColumn("Test", width=50, help="Which of the at most s certificates of the head"),
        "tested": column.TextColumn("Tested", width=190),
        "certified": column.NumberColumn(
            "Certified", format="%.3f", width=80, help=glossary.TERMS["certificate"]
        ),
        "tau": column.NumberColumn("τ", format="%.2f", width=50, help=glossary.TERMS["tau"]),
        "deficit": column.NumberColumn(
            "Missed by", format="%.3f", width=80, help="τ minus the certified mass"
        ),
        "became": column.TextColumn("Became", width=80),
        "to": column.TextColumn("Now", width=190),
        "paid": column.NumberColumn("Paid µs", format="%.0f", width=76, help=glossary.TERMS["paid"]),
    }


def _open_head(store: Store, event: pd.Series) -> None:
    unit = queries.Unit(
        str(event["run_id"]),
        int(event["layer"]),
        int(event["head"]),
        int(event["segment"]),
        int(event["batch_index"]),
    )
    way_back.remember("fallbacks")
    navigate.go("head", **view.address_of(store, unit))
