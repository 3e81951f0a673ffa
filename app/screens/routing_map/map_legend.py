"""The legends under the routing map, as HTML."""

from __future__ import annotations

import numpy as np
import pandas as pd

from routesparse.app.screens.routing_map.map_figure import FALLBACK_STEPS, Cells, value_text
from routesparse.app.ui import design
from routesparse.engine.method import families

_CORNERS = "<span>■ dense by fallback</span><span>◥ expanded</span><span>◢ uncertified</span>"


def pattern_legend(choices: pd.DataFrame, theme: design.Theme, units: int) -> str:
    """HTML of the legend for the pattern colours, with how many units took each; units: the cells of the map."""
    counts = choices["pattern"].value_counts()
    items = []
    for pattern in families.in_order(counts.index):
        color = theme.pattern(pattern)
        items.append(
            f'<span><i style="background:{color};color:{design.text_on(color)}">{design.letter(pattern)}</i>'
            f"{design.name(pattern)} {int(counts.get(pattern, 0)):,}</span>"
        )
    if len(choices) < units:
        items.append(
            f'<span><i style="background:{theme.null}"></i>not recorded {units - len(choices):,}</span>'
        )
    return f'<div class="rs-legend">{"".join(items)}{_CORNERS}</div>'


def key(choices: pd.DataFrame) -> str:
    """HTML: what letters and corners mean where the colours mean something else."""
    letters = "".join(
        f"<span><b>{design.letter(pattern)}</b>&nbsp;{design.name(pattern)}</span>"
        for pattern in families.in_order(choices["pattern"])
    )
    return f'<div class="rs-legend">{letters}{_CORNERS}</div>'


def margin(layers: pd.DataFrame, several_segments: bool, theme: design.Theme) -> str:
    """HTML: what stands right of the map. layers: rows of queries.layers."""
    everywhere, here = (", all segments", ", this segment") if several_segments else ("", "")
    marks = ['<i class="rs-bar"></i> measured', "<b>|</b> predicted"]
    if layers["limit_us"].notna().any():
        marks.append(f'<b style="color:{theme.warn}">|</b> Tℓ')
    return f"ms a layer{everywhere}: {', '.join(marks)}; ◥■ heads expanded or dense by fallback{here}"


def scale_legend(shown: Cells, metric: str, theme: design.Theme) -> str:
    """HTML of the legend for a metric: its ends, and grey for not measured."""
    if metric == "fallback":
        marks = [
            f'<span><i style="background:{design.scale_color(theme, i / (len(FALLBACK_STEPS) - 1))}"></i>{name}</span>'
            for i, name in enumerate(FALLBACK_STEPS)
        ]
        return '<div class="rs-legend">' + "".join(marks) + "</div>"
    # A dense head has no certificate and no error: that is no gap in what was measured.
    told = "not measured, or a dense head" if metric in ("lower_mass", "audited_error") else "not measured"
    grey = f'<span><i style="background:{theme.null}"></i>{told}</span>'
    if shown.values is None or np.isnan(shown.values).all():
        return f'<div class="rs-legend">{grey}</div>'
    stops = ", ".join(theme.scale)
    return (
        f'<div class="rs-legend"><span>{value_text(metric, shown.low)}</span>'
        f'<span><i style="width:110px;margin:0;background:linear-gradient(90deg,{stops})"></i></span>'
        f"<span>{value_text(metric, shown.high)}</span>"
        f"{grey}</div>"
    )
