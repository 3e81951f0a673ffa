"""One head over many prompts: how a figure of it is distributed, its deciles, and the prompts where it is highest."""

from __future__ import annotations

from dataclasses import replace
from html import escape

import numpy as np
import pandas as pd
import streamlit as st

from routesparse.app.screens.routing_map import head_panel
from routesparse.app.shell import switch, view
from routesparse.app.ui import design, elements, exports, numbers, plot, tables
from routesparse.engine.store import compare_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView

FIGURES = {
    "density": "area kept",
    "loss_nats": "predicted loss, nats",
    "audited_error": "audited error",
    "gate_statistic": "gate statistic g",
    "disagreement": "disagreement",
    "risk": "risk",
}
_TOP = 5
_FEWEST_FOR_DECILES = 10


def card(store: OwnerView, unit: queries.Unit, lens: str | None) -> None:
    """The same head with other prompts of the same weights and settings. lens: the map's, which opens this one too."""
    found = compare_queries.over_runs(store, unit)
    rows = found[found["alike"]]
    known = {name: label for name, label in FIGURES.items() if rows[name].notna().any()}
    with elements.card("other-runs", f"The same head over other prompts, segment {unit.segment + 1}"):
        others = len(found) - len(rows)
        left_out = f" {numbers.several(others, 'run')} with other settings left out." if others else ""
        if len(found) < 2:
            elements.sub("No other stored run of these weights reaches this segment.")
            return
        figure = switch.chosen("over", [lens, *known] if lens in known else list(known))
        switch.buttons("over", known, figure)
        rows = rows.dropna(subset=[figure]).sort_values(figure, ascending=False, kind="stable")
        st.html(f'<div class="rs-sub">{escape(summary(rows, figure, unit.run_id))}{left_out}</div>')
        theme = design.current_theme()
        chosen = plot.show(
            drawing(rows, figure, unit.run_id, theme),
            "head-prompts",
            f"{FIGURES[figure]} of layer {unit.layer}, head {unit.head} over {len(rows):,} prompts",
            picks=True,
        )
        if chosen is not None:
            other = queries.Unit(str(chosen[0]), unit.layer, unit.head, unit.segment)
            view.write(**view.address_of(store, other))
            st.rerun()
        st.html(_top_html(store, unit, rows.head(_TOP), figure))
        exports.chart_foot(
            f"prompts-layer-{unit.layer}-head-{unit.head}-segment-{unit.segment}",
            f"n = {len(rows):,} prompts of the same weights and settings, the newest run of each; table: the {_TOP} "
            f"highest · source: run, head_choice and audit",
            rows,
            "other-runs",
            chart="head-prompts",
        )


def summary(rows: pd.DataFrame, figure: str, run_id: str) -> str:
    """Median and outer deciles of a figure over prompts, and where this run stands among them."""
    values = rows[figure].to_numpy(float)
    here = rows.loc[rows["run_id"] == run_id, figure]
    told = f"{FIGURES[figure]}: median {np.median(values):.3g} over {numbers.several(len(values), 'prompt')}"
    if len(values) >= _FEWEST_FOR_DECILES:
        low, high = np.quantile(values, [0.1, 0.9])
        told += f"; a tenth below {low:.3g}, a tenth above {high:.3g}"
    else:
        told += f", {values.min():.3g} to {values.max():.3g}; deciles from {_FEWEST_FOR_DECILES} prompts on"
    if len(here):
        told += f". This one: {here.iloc[0]:.3g}, above {int((values < here.iloc[0]).sum()):,} of them"
    return told[0].upper() + told[1:] + "."


def drawing(rows: pd.DataFrame, figure: str, run_id: str, theme: design.Theme) -> dict[str, object]:
    """The distribution: a point a prompt, at the share of prompts up to it; this run's is filled."""
    ordered = rows.sort_values(figure, kind="stable")
    values = ordered[figure].astype(float).tolist()
    shares = ((np.arange(len(values)) + 1) / max(1, len(values))).tolist()
    is_here = (ordered["run_id"] == run_id).tolist()
    told = [
        [row.run_id, row.prompt_name, row.domain or "no domain", f"{value:.4g}"]
        for row, value in zip(frames.rows(ordered), values, strict=True)
    ]
    hover = f"{{1}}, {{2}}\n{FIGURES[figure]} {{3}}"
    marks = [
        plot.line(values, shares, theme.line, 1.5),
        plot.points(
            values,
            shares,
            [theme.accent if here else theme.panel for here in is_here],
            hover,
            told,
            size=[12 if here else 8 for here in is_here],
            edge=theme.accent,
        ),
    ]
    shares_axis = plot.linear("share of prompts", 0.0, 1.04, percent=True)
    return plot.chart(plot.around(FIGURES[figure], values, most=6), shares_axis, marks, 260, theme)


def _top_html(store: OwnerView, unit: queries.Unit, rows: pd.DataFrame, figure: str) -> str:
    theme, lines = design.current_theme(), []
    for row in frames.rows(rows):
        other = replace(unit, run_id=str(row.run_id), batch_index=0)
        domain = "–" if numbers.is_missing(row.domain) else escape(str(row.domain))
        cell = tables.pattern_cell(theme, row.pattern, row.density)
        link = head_panel.link(store, other, str(row.prompt_name))
        lines.append((link, domain, cell, numbers.share(row.density), f"{getattr(row, figure):.4g}"))
    here = (rows["run_id"] == unit.run_id).to_numpy().nonzero()[0]
    heads = ("prompt", "domain", "family", "kept", FIGURES[figure])
    shown = slice(0, -1 if figure == "density" else None)
    return tables.table(heads[shown], [line[shown] for line in lines], (0, 1, 2), here)
