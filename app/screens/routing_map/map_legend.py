"""The legends under the routing map, as HTML."""

from __future__ import annotations

import numpy as np
import pandas as pd

from routesparse.app.screens.routing_map.map_figure import FALLBACK_STEPS, Cells, value_text
from routesparse.app.ui import design
from routesparse.engine.method import families


def pattern_legend(choices: pd.DataFrame, theme: design.Theme, units: int) -> str:
    """HTML of the legend for the pattern colours, with how many units took each; units: the cells of the map."""
    counts = choices["pattern"].value_counts()
    items = []
    for pattern in families.in_order(counts.index):
        color = theme.pattern(pattern)
        items.append(
            f'<span><i style="background:{color};color:{design.text_on(color)}">{design.letter(pattern)}</i>'
            f"{design.name(pattern)} {int(counts.get(pattern, 0))}</span>"
        )
    if len(choices) < units:
        items.append(
            f'<span><i style="background:{theme.null}"></i>not recorded {units - len(choices)}</span>'
        )
    return (
        '<div class="rs-legend">'
        + "".join(items)
        + "<span>■ dense by fallback</span><span>◥ expanded</span><span>◢ uncertified</span></div>"
    )


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
