"""The routing map's margin: measured and planned time per layer against T_l, and how many units fell back."""

from __future__ import annotations

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app import design, numbers


def draw_times(chart: go.Figure, rows: pd.DataFrame, theme: design.Theme, row_px: int) -> None:
    """Measured bar, planned tick, T_l tick, and the number of fallbacks, per layer."""
    measured = (rows["probe_us"] + rows["index_us"] + rows["route_us"] + rows["kernel_us"]) / 1000
    planned, limit = rows["planned_us"] / 1000, rows["limit_us"].astype(float) / 1000
    hover = [
        f"<b>layer {row.layer}</b><br>measured {numbers.millis(m)} (kernel {numbers.micros(row.kernel_us)}, "
        f"probe {numbers.micros(row.probe_us)}, index {numbers.micros(row.index_us)}, "
        f"routing {numbers.micros(row.route_us)})<br>planned {numbers.micros(row.planned_us)}"
        f"<br>T_l {numbers.micros(row.limit_us) if not numbers.is_missing(row.limit_us) else 'none'}"
        f"<br>dense, as profiled {numbers.micros(row.dense_us)}"
        f"<br>{row.dense_fallback} of {row.units} units dense by fallback, {row.expanded} expanded"
        for row, m in zip(rows.itertuples(), measured, strict=True)
    ]
    fixed = {"selected": {"marker": {"opacity": 1}}, "unselected": {"marker": {"opacity": 1}}}
    chart.add_bar(
        x=measured,
        y=rows["layer"],
        orientation="h",
        marker={"color": design.blend(theme.panel, theme.accent, 0.72), "line": {"width": 0}},
        text=hover,
        textposition="none",
        hovertemplate="%{text}<extra></extra>",
        **fixed,
        row=1,
        col=2,
    )
    tick = row_px * 0.48
    for values, color, width in ((planned, theme.ink, 2), (limit, theme.warn, 2)):
        chart.add_scatter(
            x=values,
            y=rows["layer"],
            mode="markers",
            marker={"symbol": "line-ns", "size": tick, "line": {"color": color, "width": width}},
            **fixed,
            hoverinfo="skip",
            row=1,
            col=2,
        )
        tick = row_px * 0.8
    longest = float(np.nanmax(np.concatenate([measured, planned, limit.fillna(0)]))) if len(rows) else 1.0
    fallen = rows["dense_fallback"].fillna(0) + rows["expanded"].fillna(0)
    chart.add_scatter(
        x=[longest * 1.34] * len(rows),
        y=rows["layer"],
        mode="text",
        text=[f"{int(n)}" if n else "–" for n in fallen],
        textposition="middle left",
        textfont={"color": theme.mute, "size": 11},
        selected={"textfont": {"color": theme.mute}},
        unselected={"textfont": {"color": theme.mute}},
        hoverinfo="skip",
        row=1,
        col=2,
    )
    chart.add_annotation(
        x=longest * 1.35,
        y=-0.5,
        xanchor="right",
        yanchor="bottom",
        text="▲■",
        showarrow=False,
        font={"size": 10, "color": theme.mute},
        row=1,
        col=2,
    )
    step = _round_step(longest)
    chart.update_xaxes(
        side="top",
        range=[0, longest * 1.36],
        tickvals=[step * i for i in range(int(longest * 1.12 / step) + 1)],
        gridcolor=theme.line,
        zeroline=False,
        fixedrange=True,
        ticks="",
        row=1,
        col=2,
    )


def _round_step(longest: float) -> float:
    """A tick distance of 1, 2 or 5 times a power of ten that gives two to four ticks."""
    power = 10.0 ** np.floor(np.log10(max(longest, 1e-9)))
    return float(next(s * power for s in (0.2, 0.5, 1.0, 2.0, 5.0) if longest / (s * power) <= 3.2))
