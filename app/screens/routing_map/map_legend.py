"""The legends around the routing map, as HTML."""

from __future__ import annotations

import numpy as np
import pandas as pd

from routesparse.app.screens.routing_map.map_figure import FALLBACK_STEPS, Cells, value_text
from routesparse.app.ui import design
from routesparse.engine.method import families

_CORNERS = "<span>■ dense by fallback</span><span>◥ expanded</span><span>◢ uncertified</span>"


def legend(choices: pd.DataFrame, shown: Cells, metric: str, theme: design.Theme) -> str:
    """What the colours mean, then the letters with their number of units, and the corners."""
    counts = choices["pattern"].value_counts()
    letters = []
    for pattern in families.in_order(counts.index):
        color = theme.pattern(pattern) if metric == "pattern" else theme.panel
        style = f"background:{color};color:{design.text_on(color)}"
        name = f"{design.name(pattern)} {counts.get(pattern, 0):,}"
        letters.append(f'<span><i style="{style}">{design.letter(pattern)}</i>{name}</span>')
    grey = shown.colors.size - len(choices)
    if metric == "pattern" and grey:
        letters.append(_swatch(theme.null, f"not recorded {grey:,}"))
    scale = "" if metric == "pattern" else _scale(shown, metric, theme)
    return f'{scale}<div class="rs-legend">{"".join(letters)}{_CORNERS}</div>'


def margin(layers: pd.DataFrame, several_segments: bool, theme: design.Theme) -> str:
    """HTML: what stands right of the map. layers: rows of queries.layers."""
    everywhere, here = (", all segments", ", this segment") if several_segments else ("", "")
    marks = ['<i class="rs-bar"></i> measured', "<b>|</b> predicted"]
    if layers["limit_us"].notna().any():
        marks.append(f'<b style="color:{theme.warn}">|</b> Tℓ')
    return f"ms a layer{everywhere}: {', '.join(marks)}; ◥■ heads expanded or dense by fallback{here}"


def _swatch(color: str, name: str) -> str:
    return f'<span><i style="background:{color}"></i>{name}</span>'


def _scale(shown: Cells, metric: str, theme: design.Theme) -> str:
    """A metric's ends, and grey for not measured."""
    if metric == "fallback":
        last = len(FALLBACK_STEPS) - 1
        steps = (_swatch(design.scale_color(theme, i / last), name) for i, name in enumerate(FALLBACK_STEPS))
        return f'<div class="rs-legend">{"".join(steps)}</div>'
    # A dense head has no certificate and no error: that is no gap in what was measured.
    told = "not measured, or a dense head" if metric in ("lower_mass", "audited_error") else "not measured"
    ends = ""
    if shown.values is not None and not np.isnan(shown.values).all():
        bar = f"width:110px;margin:0;background:linear-gradient(90deg,{', '.join(theme.scale)})"
        low, high = value_text(metric, shown.low), value_text(metric, shown.high)
        ends = f'<span>{low}</span><span><i style="{bar}"></i></span><span>{high}</span>'
    return f'<div class="rs-legend">{ends}{_swatch(theme.null, told)}</div>'
