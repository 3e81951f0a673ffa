"""The card of tuned prices on other kinds of text or question: which keep their target, what they lose and save."""

from __future__ import annotations

from dataclasses import asdict
from html import escape
from typing import Any

import pandas as pd
import streamlit as st

from routesparse.app.screens.results import rows
from routesparse.app.shell import switch
from routesparse.app.ui import design, exports, glossary, grid, states
from routesparse.app.ui.error_words import wrong
from routesparse.engine.errors import ResultsError
from routesparse.engine.results import shift
from routesparse.engine.results.shift import Goal, Shift
from routesparse.engine.verdict import Level

_LEVELS: tuple[Level, ...] = ("green", "amber", "red")  # of shift.KEPT
_TINT = 0.22  # share of a level's colour in its cell, so that the theme's ink stays readable on it
_ROW_PX = 66


def card() -> None:
    """Draw it; nothing where no such file ships. The address holds the target."""
    by_measure: dict[str, tuple[str, Shift, Goal]] = {}
    for path in shift.shipped():
        try:
            found = shift.read(path)
        except ResultsError as error:
            states.field_error(
                f"{wrong(error)}. It comes with RouteSparse: bring it back from the repository."
            )
            continue
        by_measure |= {goal.measure: (path.name, found, goal) for goal in found.goals}
    if not by_measure:
        return
    with st.container(border=True, key="card-shift", gap="xsmall"):
        st.html(f'<div class="rs-h">{escape(shift.TITLE)}{glossary.mark("quality")}</div>')
        measure = switch.chosen("target", by_measure)
        switch.buttons("target", {name: goal.words for name, (_, _, goal) in by_measure.items()}, measure)
        _draw(*by_measure[measure])


def _draw(file: str, found: Shift, goal: Goal) -> None:
    st.html(f'<div class="rs-plain">{escape(shift.headline(goal))}</div>')
    theme = design.current_theme()
    name = f"shift-{goal.measure}"
    grid.show(picture(goal, theme), "shift-chart", f"Whether tuned prices keep {goal.words}")
    exports.chart_foot(
        name,
        f"second line: mean loss and its upper bound, each at {100 * goal.confidence:g} % · third: area, against "
        f"the strictest price for this target · {shift.told(found)} · source: data/results/{file}",
        flat(goal),
        "shift",
        chart="shift-chart",
    )
    st.html(f'<div class="rs-note">{escape(shift.how(goal))}</div>')
    with st.expander("The same as a table"):
        st.html(rows.html(shift.table(found, goal)))


def picture(goal: Goal, theme: design.Theme) -> dict[str, Any]:
    """Prices down, kinds of text or question across; three lines in a cell, framed where the price was tuned."""
    fills = [design.blend(theme.panel, theme.levels[level], _TINT) for level in _LEVELS]
    cells = [
        {
            "row": place,
            "column": goal.domains.index(use.domain),
            "color": fills[shift.KEPT.index(goal.kept(use))],
            "text": "\n".join(shift.cell(goal, use)),
            "strong": False,
            "hover": "\n".join(
                [
                    f"{one.name} on {use.domain}{', tuned on it' if use.own else ''}",
                    *shift.cell(goal, use),
                    f"n = {use.windows} {goal.units} in {use.clusters} clusters",
                ]
            ),
            "framed": use.own,
        }
        for place, one in enumerate(goal.prices)
        for use in one.uses
    ]
    names = [f"{one.name}\n{one.told_short.replace(': ', chr(10))}" for one in goal.prices]
    axes = (grid.Axis("", names), grid.Axis("used on", goal.domains))
    return grid.drawing(pd.DataFrame(cells), *axes, theme, _ROW_PX)


def flat(goal: Goal) -> pd.DataFrame:
    """One row a price and a kind of text or question."""
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
