"""The card of tuned prices on other kinds of text: which keep their target, with what they lose and save."""

from __future__ import annotations

from dataclasses import asdict
from html import escape

import pandas as pd
import plotly.graph_objects as go
import streamlit as st

from routesparse.app.screens.results import rows
from routesparse.app.shell import switch
from routesparse.app.ui import design, exports, glossary, states
from routesparse.app.ui.error_words import wrong
from routesparse.engine.errors import ResultsError
from routesparse.engine.results import shift
from routesparse.engine.results.shift import Goal, Shift
from routesparse.engine.verdict import Level

_LEVELS: tuple[Level, ...] = ("green", "amber", "red")  # of shift.KEPT
_TINT = 0.22  # share of a level's colour in its cell, so that the theme's ink stays readable on it


def card() -> None:
    """Draw it; nothing where no such file ships. The address holds the target."""
    try:
        found = shift.shipped()
    except ResultsError as error:
        states.field_error(f"{wrong(error)}. It comes with RouteSparse: bring it back from the repository.")
        return
    if found is None:
        return
    with st.container(border=True, key="card-shift", gap="xsmall"):
        st.html(f'<div class="rs-h">{escape(shift.TITLE)}{glossary.mark("quality")}</div>')
        by_measure = {one.measure: one for one in found.goals}
        measure = switch.chosen("target", by_measure)
        switch.buttons("target", {name: one.words for name, one in by_measure.items()}, measure)
        _draw(found, by_measure[measure])


def _draw(found: Shift, goal: Goal) -> None:
    st.html(f'<div class="rs-plain">{escape(shift.headline(goal))}</div>')
    theme = design.current_theme()
    name = f"shift-{goal.measure}"
    with st.container(key="shift-picture"):
        st.plotly_chart(picture(goal, theme), key="shift-chart", theme=None, config=design.chart_config(name))
    exports.chart_foot(
        name,
        f"second line: mean loss and its upper bound, each at {100 * goal.confidence:g} % · third: area, against "
        f"the strictest price for this target · {shift.told(found)} · source: data/results/{shift.FILE}",
        flat(goal),
        "shift",
        chart="shift-chart",
    )
    st.html(f'<div class="rs-note">{escape(shift.HOW)}</div>')
    with st.expander("The same as a table"):
        st.html(rows.html(shift.table(found, goal)))


def picture(goal: Goal, theme: design.Theme) -> go.Figure:
    """Prices down, kinds of text across; three lines in a cell, framed where the price was tuned."""
    prices = list(reversed(goal.prices))  # a chart's first row is its lowest
    names = [f"<b>{escape(one.name)}</b><br>{escape(one.told)}" for one in prices]
    fills = [design.blend(theme.panel, theme.levels[level], _TINT) for level in _LEVELS]
    chart = go.Figure()
    chart.add_heatmap(
        x=goal.domains,
        y=names,
        z=[[shift.KEPT.index(goal.kept(use)) for use in one.uses] for one in prices],
        text=[["<br>".join(shift.cell(goal, use)) for use in one.uses] for one in prices],
        customdata=[[f"n = {use.windows} windows in {use.clusters}" for use in one.uses] for one in prices],
        texttemplate="%{text}",
        hovertemplate="%{y} on %{x}<br>%{text}<br>%{customdata}<extra></extra>",
        textfont={"color": theme.ink, "size": 12},
        colorscale=[[(place + end) / 3, fills[place]] for place in range(3) for end in (0, 1)],
        zmin=-0.5,
        zmax=2.5,
        showscale=False,
        xgap=3,
        ygap=3,
    )
    for place, one in enumerate(prices):
        for across, use in enumerate(one.uses):
            if use.own:
                chart.add_shape(
                    type="rect",
                    x0=across - 0.48,
                    x1=across + 0.48,
                    y0=place - 0.47,
                    y1=place + 0.47,
                    line={"color": theme.ink, "width": 1.6},
                )
    chart.update_xaxes(
        side="top", fixedrange=True, title={"text": "used on"}, tickfont={"color": theme.ink, "size": 12}
    )
    chart.update_yaxes(fixedrange=True, automargin=True, tickfont={"color": theme.ink, "size": 11})
    chart.update_layout(
        template=design.template(theme),
        height=70 + 66 * len(prices),
        dragmode=False,
        margin={"l": 150, "r": 8, "t": 52, "b": 8},
    )
    return chart


def flat(goal: Goal) -> pd.DataFrame:
    """One row a price and a kind of text."""
    return pd.DataFrame(
        {
            "name": one.name,
            "price": one.price,
            "tuned_on": ", ".join(one.tuned_on),
            "robust": one.robust,
            **{name: value for name, value in asdict(use).items() if name != "own"},
            "tuned_on_it": use.own,
            "target": goal.words,
            "limit": goal.limit,
            "confidence": goal.confidence,
            "kept": goal.kept(use),
        }
        for one in goal.prices
        for use in one.uses
    )
