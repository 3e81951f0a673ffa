"""Calibration and profiles: what was measured beforehand, what it was measured on, and whether it still fits."""

from __future__ import annotations

from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.screens.calibration import figures, fits, profile, wording
from routesparse.app.shell import identity, switch
from routesparse.app.shell.access import access
from routesparse.app.ui import design, elements, exports, numbers, plot, states, tables, tuned_prices
from routesparse.engine.calibration.artifact import Calibration, known, load_known
from routesparse.engine.errors import CalibrationError
from routesparse.engine.store import calibration_queries
from routesparse.engine.store.owner_view import OwnerView

SIDE_BY_SIDE = 2
_CONFIDENCES = (0.9, 0.95, 0.99)


def render() -> None:
    """Draw the page."""
    store = access().store
    st.html('<div class="rs-title">Calibration and profiles</div>')
    shown = _chosen()
    if shown:
        confidence = _confidence()
        _facts_cards(shown, confidence)
        _delta_card(shown, confidence)
        _drift_card(store, shown)
        _fold_card(shown)
    tuned_prices.card(identity.owner())
    fits.card()
    profile.cards(store)


def _chosen() -> list[Calibration]:
    """The one or two calibrations of the address, else the first two; what can't be read is named."""
    bundled = known(identity.owner())
    if not bundled:
        states.empty(
            "No calibrations yet",
            [
                "Everything works without one: λ follows from τ, or under the policy priced from the "
                "price, and the in-prompt certificates decide alone.",
                "A calibration adds the conformal claim for prompts like its own.",
            ],
            f"{states.PROGRAM} calibrate demo FILE... --domain NAME",
        )
        return []
    wanted = [name for name in st.query_params.get("names", "").split(",") if name][:SIDE_BY_SIDE]
    wanted = list(dict.fromkeys(wanted)) or bundled[:SIDE_BY_SIDE]
    with st.container(horizontal=True, gap="medium", vertical_alignment="bottom"):
        known_ones = [name for name in wanted if name in bundled]
        label = "One calibration, or two side by side"
        switch.many("names", label, bundled, known_ones, max_selections=SIDE_BY_SIDE, width=420)
        switch.field("q", "Confidence q", list(_CONFIDENCES), _confidence(), width=120)
    loaded = []
    for name in wanted:
        try:
            loaded.append(load_known(name, identity.owner()))
        except CalibrationError as error:
            states.field_error(f"{error}. The others are shown.")
    return loaded


def _confidence() -> float:
    text = st.query_params.get("q", "")
    return next((q for q in _CONFIDENCES if text == str(q)), 0.95)


def _facts_cards(shown: list[Calibration], confidence: float) -> None:
    columns = st.columns(SIDE_BY_SIDE, gap="small")
    for place, one in enumerate(shown):
        with columns[place], elements.card(f"facts-{place}"):
            told = f'<div class="rs-sub">{escape(wording.sentence(one, confidence))}</div>'
            st.html(f'<div class="rs-h">{escape(one.name)}</div>{told}{wording.facts_html(one)}')


def _delta_card(shown: list[Calibration], confidence: float) -> None:
    rows = wording.delta_rows(shown)
    prompts = figures.prompt_rows(shown)
    drawable = len(prompts) > 0 and len(rows) > 0
    with elements.card("delta", "δ, the amount subtracted from g, by length", "conformal"):
        st.html(tables.of_rows(wording.delta_cells(rows)))
        if drawable:
            drawn = figures.by_length(prompts, rows, confidence, design.current_theme())
            plot.show(drawn, "by-length", "Residuals of fold B by length, with δ")
            elements.note(
                "Dot: one window of fold B, at the 95th percentile of its residuals. Line: δ "
                f"for that range of lengths at q = {confidence:g}."
            )
        exports.chart_foot(
            "delta",
            "δ as share of mass; infinite: too few windows K for that q, so no claim is made (at least 19 for .95, 99 "
            "for .99) · no claim is made outside these lengths · source: the calibration files",
            rows,
            "delta",
            chart="by-length" if drawable else None,
        )


def _drift_card(store: OwnerView, shown: list[Calibration]) -> None:
    runs = calibration_queries.drift(store, [one.name for one in shown])
    references = {one.name: one.drift for one in shown if one.drift is not None}
    assessed = runs.dropna(subset=["drift_distance"])
    with elements.card("drift", "Do stored runs look like the calibration’s prompts?", "drift"):
        if not references:
            elements.sub("Not recorded in these calibrations: drift can’t be assessed.")
            return
        drawn = figures.drift(references, assessed, design.current_theme())
        plot.show(drawn, "drift", "Drift distances of calibration windows and stored runs")
        st.html(_alarms(runs, assessed))
        exports.chart_foot(
            "drift",
            f"n = {len(assessed)} of {len(runs)} stored runs that used them · grey: the calibration’s own windows, "
            "each measured without its document · dashed: an alarm beyond this line, triangles: runs beyond it · "
            "source: run, calibration files",
            runs,
            "drift",
            chart="drift",
        )


def _alarms(runs: pd.DataFrame, assessed: pd.DataFrame) -> str:
    """How many alarms per calibration and domain of the prompts."""
    if runs.empty:
        return '<div class="rs-sub">No stored run used these calibrations yet.</div>'
    if assessed.empty:
        return '<div class="rs-sub">Not measured: the stored runs are older than this check, or of other lengths.</div>'
    lines = []
    for (name, domain), part in assessed.assign(domain=assessed["domain"].fillna("no domain")).groupby(
        ["calibration", "domain"]
    ):
        alarms = int(part["drift_alarm"].fillna(False).astype(bool).sum())
        mark = ' class="rs-warn"' if alarms else ""
        count = numbers.several(alarms, "alarm") if alarms else "no alarm"
        lines.append(
            f"<span{mark}>{escape(str(name))} on {escape(str(domain))}: "
            f"{count} in {numbers.several(len(part), 'run')}</span>"
        )
    return f'<div class="rs-legend">{"".join(lines)}</div>'


def _fold_card(shown: list[Calibration]) -> None:
    rows = wording.fold_rows(shown)
    with elements.card("folds", "Documents of both folds", "folds"):
        if rows.empty:
            elements.sub("Not recorded in these calibrations.")
            return
        if leaked := wording.overlap(shown):
            states.field_error(f"In both folds, so δ is too small: {leaked}. Calibrate again.")
        else:
            elements.sub("No document is in both folds: fitting saw none that δ is of.")
        st.html(tables.of_rows(wording.fold_cells(rows), left=(0, 1, 2)))
        exports.chart_foot(
            "folds",
            f"n = {len(rows)} documents · windows of one document resemble each other, so documents are split, never "
            "windows · source: the calibration files",
            rows,
            "folds",
        )
