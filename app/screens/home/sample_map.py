"""A run's routing map in small, with numbered notes: what the newcomer will see on the next page."""

from __future__ import annotations

from html import escape

import pandas as pd

from routesparse.app.ui import design, numbers, reason_words
from routesparse.engine.rows import RunRow
from routesparse.engine.store import frames

MOST_SIDE = 12  # layers and heads drawn: of a larger model the first ones


def html(run: RunRow, choices: pd.DataFrame, picked: tuple[int, int], theme: design.Theme) -> str:
    """The map, a ring around the picked unit, and three notes. choices: of one segment."""
    shown = choices[(choices["layer"] < MOST_SIDE) & (choices["head"] < MOST_SIDE)]
    units = {(row.layer, row.head): row for row in frames.rows(shown)}
    layer, head = picked if picked in units else next(iter(units))
    layers, heads = min(run.layers, MOST_SIDE), min(run.heads, MOST_SIDE)
    cells = "".join(
        f'<span class="no">{i}</span>'
        + "".join(_cell(units.get((i, j)), (i, j) == (layer, head), theme) for j in range(heads))
        for i in range(layers)
    )
    below = "".join(f'<span class="no">{j}</span>' for j in range(heads))
    unit = units[layer, head]
    cut = (
        ""
        if (layers, heads) == (run.layers, run.heads)
        else f" (the first {layers} layers and {heads} heads)"
    )
    notes = (
        f"One cell is one head of one layer of the model{cut}: layers downwards, heads to the right. Letter and colour "
        "are the pattern that this head took on this prompt; the stronger, the more it reads.",
        f"The ring: layer {layer}, head {head} took {design.name(unit.pattern)} and reads "
        f"{numbers.share(unit.density)} of what dense attention would. Why: {reason_words.shown(unit.reason)}.",
        "A click on a cell shows every other candidate and why it was not taken; the audit beside it says whether the "
        "choice was right.",
    )
    listed = "".join(f"<li>{escape(note)}</li>" for note in notes)
    grid = f"grid-template-columns: repeat({heads + 1}, 28px)"
    name = f"Routing map of {run.prompt_name}, {layers} layers by {heads} heads"
    return (
        f'<div class="rs-sample"><div class="rs-cells" role="img" aria-label="{escape(name)}" style="{grid}">{cells}'
        f"<span></span>{below}</div><ol>{listed}</ol></div>"
    )


def _cell(unit: object, picked: bool, theme: design.Theme) -> str:
    if unit is None:
        return "<span></span>"
    color = design.pattern_color(theme, unit.pattern, unit.density)  # type: ignore[attr-defined]
    ring = ' class="ring"' if picked else ""
    letter = escape(design.letter(unit.pattern))  # type: ignore[attr-defined]
    return f'<span{ring} style="background:{color};color:{design.text_on(color)}">{letter}</span>'
