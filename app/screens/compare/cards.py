"""The cards of a comparison under its map: mean differences, choices over domains, settings that differ."""

from __future__ import annotations

import pandas as pd
import streamlit as st

from routesparse.app.screens.compare import figures, tables
from routesparse.app.screens.compare.selection import Sides
from routesparse.app.ui import design, exports, glossary, grid
from routesparse.engine.stats import comparison
from routesparse.engine.store import compare_queries
from routesparse.engine.store.owner_view import OwnerView


def intervals(sides: Sides) -> None:
    """Mean differences to the baseline with their intervals, paired where the prompt is the same."""
    found = {
        side.key: comparison.differences(sides.baseline.choices, side.choices, sides.paired(side))
        for side in sides.all
        if side is not sides.baseline
    }
    with st.container(border=True, key="card-intervals", gap="xsmall"):
        st.html(f'<div class="rs-h">Mean differences{glossary.mark("paired")}</div>')
        st.html(tables.intervals_html(sides, found))
        exports.chart_foot(
            f"differences-{sides.baseline.key}",
            "other minus baseline, mean over units · 95 % interval, resampled by layer: how the difference varies "
            "over heads, not over prompts · bold: the interval excludes 0 · source: "
            + ("candidate_score, replayed" if sides.replayed else "head_choice and audit"),
            tables.intervals_rows(found),
            "intervals",
        )


def entropy(store: OwnerView, sides: Sides, stored: pd.DataFrame) -> None:
    """How much each head's choice depends on the domain, over all stored runs of the baseline's weights."""
    run = sides.baseline.run
    same = stored[stored["model_revision"] == run.model_revision]
    domains = same["domain"].dropna().nunique()
    with st.container(border=True, key="card-entropy", gap="xsmall"):
        st.html(
            f'<div class="rs-h">How much a head’s choice depends on the domain{glossary.mark("choice_entropy")}</div>'
        )
        if domains < 2:
            st.html(
                '<div class="rs-sub">Needs stored runs of at least two domains with these weights; '
                f"there {'is one' if domains else 'is none'}. Analyse prompts with a domain set.</div>"
            )
            return
        rows = comparison.choice_entropy(compare_queries.patterns_by_domain(store, list(same["run_id"])))
        theme = design.current_theme()
        grid.show(figures.entropy_map(rows, theme), "entropy", "Bits of each head’s choice over domains")
        st.html(_bits_legend(figures.most_bits(rows), theme))
        exports.chart_foot(
            f"choice-entropy-{run.model}",
            f"n = {int(same['domain'].notna().sum())} stored runs of {domains} domains, model {run.model} · letter: "
            "the most frequent family · source: head_choice",
            rows,
            "entropy",
            chart="entropy",
        )


def _bits_legend(most: float, theme: design.Theme) -> str:
    """What the shades mean; ``most`` is what the strongest one stands for."""
    stops = ", ".join(design.scale_color(theme, share) for share in (0.0, 0.5, 1.0))
    return (
        '<div class="rs-legend"><span>0 bits: the same in every domain</span><span><i style="width:130px;margin:0;'
        f'background:linear-gradient(90deg,{stops})"></i></span><span>{most:.2g} bits</span></div>'
    )


def settings(sides: Sides) -> None:
    """The settings that differ; equal ones are hidden."""
    table = comparison.settings_table({side.key: side.settings for side in sides.all})
    different = table[~table["equal"]]
    with st.container(border=True, key="card-settings", gap="xsmall"):
        st.html('<div class="rs-h">Settings that differ</div>')
        if different.empty:
            st.html('<div class="rs-sub">None: the same settings, model, machine and versions.</div>')
        else:
            st.html(tables.settings_html(sides, different))
        exports.chart_foot(
            "settings",
            f"{len(table) - len(different)} equal settings are hidden; the files hold all {len(table)}",
            table.astype(str),
            "settings",
        )
