"""The certificates of layers (policy priced) beside the audited mean mass of their heads."""

from __future__ import annotations

from collections.abc import Callable
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import elements, exports, glossary, numbers, tables
from routesparse.engine.store import frames, queries
from routesparse.engine.store.owner_view import OwnerView

MOST = 32


def card(store: OwnerView, shown: Scope, layers: pd.DataFrame) -> None:
    """Layer by layer, the least certified first; layers: rows of audit_queries.layer_claims."""
    rows = layers.sort_values(["lower_mass", "run_id", "layer"], na_position="last").head(MOST)
    with elements.card("layer-claims", "Certificates of the layers", "layer_certificate"):
        told, table = store.made(
            "audit layers",
            [shown.everything, shown.run.confidence],
            lambda: (held(layers, shown.run.confidence), _table(store, rows, shown.everything)),
            of=shown.run_ids,
        )
        st.html(
            f'<div class="rs-sub">Certified means against audited ones: {told}. A mean over heads and rows: one head '
            f"or one row may lose far more.</div>{table}"
        )
        exports.chart_foot(
            f"layer-certificates-{shown.name}",
            f"n = {numbers.several(len(layers), 'layer')} of runs with policy priced"
            + (f", the {MOST} least certified shown" if len(layers) > len(rows) else "")
            + " · share of 1, least over segments; audited: mean over all heads, dense ones count 1 · source: "
            f"layer_run, head_choice and audit of {shown.words}",
            layers,
            "layer-claims",
        )


def held(layers: pd.DataFrame, confidence: float) -> str:
    """How many claims held, and what chance alone may break; of several segments the run keeps the least claim, so
    that only a broken one shows. layers: rows of audit_queries.layer_claims."""
    known = layers.dropna(subset=["audited_mass", "lower_mass"])
    one, several = known[known["claims"] == 1], known[known["claims"] > 1]
    broken = known[known["covered"] == False]  # noqa: E712  NULL is not known
    told = [f"{int(one['covered'].sum())} of {len(one)} hold"] if len(one) else []
    if len(several):
        missed = int((broken["claims"] > 1).sum())
        told.append(f"{missed} of {len(several)} with several segments have one below the least bound")
    if len(broken):
        by = float((broken["lower_mass"] - broken["audited_mass"]).max())
        told.append(f"missed by {numbers.small(by)} at most; {numbers.may_miss(confidence)}")
    return "; ".join(told) or numbers.NOT_MEASURED


def _table(store: OwnerView, rows: pd.DataFrame, with_run: bool) -> str:
    heading = glossary.heading
    heads = ["run", "prompt"] if with_run else []
    heads += ["layer", heading("certified mass", "layer_certificate"), heading("τ layer", "tau_layer")]
    heads += [heading("raised", "raised"), "audited mean", "sparse units", "verdict"]
    lines = []
    for row in frames.rows(rows):
        run_id = str(row.run_id)
        address = escape(navigate.address("map", run=queries.short_id(store, run_id), layer=row.layer))
        line = [escape(queries.label(run_id)), escape(str(row.prompt_name))] if with_run else []
        lines.append(
            [
                *line,
                f'<a href="{address}" target="_self">layer {row.layer}</a>',
                _known(row.lower_mass, numbers.bound),
                numbers.threshold(row.tau_layer),
                _known(row.raised, numbers.count),
                _known(row.audited_mass, numbers.mass),
                _known(row.sparse_units, numbers.count),
                _verdict(row),
            ]
        )
    return tables.table(heads, lines, (0, 1, 2, len(heads) - 1) if with_run else (0, len(heads) - 1))


def _known(value: Any, printed: Callable[[Any], str]) -> str:
    return "–" if numbers.is_missing(value) else printed(value)


def _verdict(row: Any) -> str:
    if row.uncertified:
        return '<span class="rs-warn">ran without certified mass</span>'
    if numbers.is_missing(row.lower_mass):
        return "all dense" if not row.sparse_units else "mass not certified"
    if numbers.is_missing(row.covered):
        known = not numbers.is_missing(row.audited_mass)
        return f"reaches τ layer; {'no segment below the least bound' if known else 'not audited'}"
    if row.covered:
        return "reaches τ layer; the bound holds"
    missed = f"audited {numbers.small(row.lower_mass - row.audited_mass)} below the bound"
    return f'reaches τ layer; <span class="rs-warn">{missed}</span>'
