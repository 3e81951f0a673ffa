"""The grid of a comparison: what differs, head by head."""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, elements, grid, numbers

MOST_HEADS_WITH_TEXT = 16  # a wider map has room for a letter only
_THREE = partial(numbers.signed, digits=3)
# metric of the difference map -> (name, unit of the difference, how a value is printed)
MAPS: dict[str, tuple[str, str, Callable[[float], str]]] = {
    "density": ("Kept", "points of the body’s causal area kept", lambda v: numbers.signed(100 * v, 1)),
    "choice": ("Family", "another family, or more or less of the same", str),
    "gate_statistic": ("Gate statistic", "gate statistic g", _THREE),
    "lower_mass": ("Certified mass", "certified retained mass (in-prompt)", _THREE),
    "conformal_lower_mass": ("Conformal", "conformal lower bound", _THREE),
    "audited_mass": ("Audited mass", "audited retained mass", _THREE),
    "audited_error": ("Error", "relative output error", _THREE),
}


def difference_map(
    pairs: pd.DataFrame, metric: str, shape: tuple[int, int], theme: design.Theme
) -> tuple[dict[str, Any], pd.DataFrame]:
    """One segment's pairs on the layer x head grid; also the rows drawn, with ``difference`` (other - baseline)."""
    wide = shape[1] <= MOST_HEADS_WITH_TEXT
    if metric == "choice":
        rows = pairs.assign(difference=np.nan)
        color = [
            design.pattern_color(theme, row.pattern_b, row.density_b) if row.changed else _same_color(theme)
            for row in rows.itertuples()
        ]
        text = [_change(row.pattern_a, row.pattern_b, row.changed, wide) for row in rows.itertuples()]
    else:
        rows = pairs.assign(
            difference=pairs[f"{metric}_b"].astype(float) - pairs[f"{metric}_a"].astype(float)
        )
        largest = float(rows["difference"].abs().fillna(0.0).max())
        show = MAPS[metric][2]
        color = [theme.null if np.isnan(d) else grid.diverging(d, largest, theme) for d in rows["difference"]]
        text = ["–" if np.isnan(d) else show(d) if wide else "" for d in rows["difference"]]
    strong = rows["changed"] if metric == "choice" else False
    hover = [_hover(row, metric) for row in rows.to_dict("records")]
    return grid.by_head(rows, shape, theme, color=color, text=text, strong=strong, hover=hover), rows


def legend(metric: str, rows: pd.DataFrame, heads: int, theme: design.Theme) -> str:
    """HTML: what the colours of the difference map mean. rows: those drawn."""
    if metric == "choice":
        arrows = heads <= MOST_HEADS_WITH_TEXT
        other = (
            "<b>V→B</b>&nbsp;another family" if arrows else "coloured: read otherwise, letter of its family"
        )
        same = _same_color(theme)
        return (
            f'<div class="rs-legend"><span><i style="background:{same};color:{design.text_on(same)}">V</i>alike'
            f"</span><span>{other}</span><span><b>V′</b>&nbsp;more or less of the same</span></div>"
        )
    grey = f'<span><i style="background:{theme.null}"></i>not measured on both sides</span>'
    known = rows["difference"].dropna().abs()
    if known.empty:
        return f'<div class="rs-legend">{grey}</div>'
    show, largest = MAPS[metric][2], float(known.max())
    colors = [grid.diverging(v * largest, largest, theme) for v in (-1, -0.5, 0, 0.5, 1)]
    return elements.scale_html(show(-largest), show(largest), colors, grey)


def _same_color(theme: design.Theme) -> str:
    return design.blend(theme.panel, theme.line, 0.6)


def _change(before: str, after: str, changed: bool, wide: bool) -> str:
    one, other = design.letter(before), design.letter(after)
    if not changed:
        return one
    if one == other:
        return f"{one}′"
    return f"{one}→{other}" if wide else other


def _hover(row: dict[Any, Any], metric: str) -> str:
    lines = [f"layer {row['layer']}, head {row['head']}"]
    for name, side in (("baseline", "a"), ("other", "b")):
        value = "" if metric == "choice" else f", {numbers.mass(row[f'{metric}_{side}'], 4)}"
        lines.append(f"{name}: {design.name(row[f'pattern_{side}'])} ({row[f'budget_{side}']}){value}")
    return "\n".join(lines)
