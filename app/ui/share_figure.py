"""Shares by group: a dot per prompt, a bar for the interval, a diamond for the mean, and one reference line."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd
import plotly.graph_objects as go

from routesparse.app.ui import design, numbers

MOST_DOTS = 400  # more of them hide one another, and each costs the browser
_ROW_PX = 38


@dataclass(frozen=True)
class Reference:
    """The vertical line that the groups are read against."""

    value: float
    name: str


def figure(
    groups: pd.DataFrame,
    dots: pd.DataFrame,
    reference: Reference,
    theme: design.Theme,
    here: str | None = None,
) -> go.Figure:
    """groups: rows of prompt_stats.by_group, drawn from the top; dots: ``group``, ``value``, ``label``, ``run_id``.

    The dots of the run ``here`` are filled. The axis covers all values and the reference, never more than [0, 1].
    """
    order = list(groups["group"])
    place = {name: i for i, name in enumerate(order)}
    dots = _few(dots, here)
    shift = np.random.default_rng(0).uniform(-0.2, 0.2, len(dots))
    mine = (dots["run_id"] == here).to_numpy()
    pale = design.blend(theme.panel, theme.accent, 0.35)
    ends = _range(dots["value"], groups, reference.value)
    labels = [f"{name}  <i>n = {count}</i>" for name, count in zip(order, groups["runs"], strict=True)]
    traces: list[dict[str, Any]] = [
        {
            "type": "scatter",
            "x": dots["value"].tolist(),
            "y": (dots["group"].map(place).to_numpy() + shift).tolist(),
            "mode": "markers",
            "marker": {
                "size": [9 if m else 6 for m in mine],
                "color": [theme.accent if m else pale for m in mine],
                "line": {"width": 1, "color": theme.panel},
            },
            "text": dots["label"].tolist(),
            "hovertemplate": "%{text}<br>%{x:.1%}<extra></extra>",
        },
        *(
            {
                "type": "scatter",
                "x": [row.low, row.high],
                "y": [place[row.group]] * 2,
                "mode": "lines",
                "line": {"color": theme.ink, "width": 2.5},
                "hoverinfo": "skip",
            }
            for row in groups.dropna(subset=["low", "high"]).itertuples()
        ),
        {
            "type": "scatter",
            "x": groups["mean"].tolist(),
            "y": list(range(len(order))),
            "mode": "markers",
            "marker": {
                "symbol": "diamond",
                "size": 11,
                "color": theme.ink,
                "line": {"width": 1.5, "color": theme.panel},
            },
            "text": [_hover(row) for row in groups.to_dict("records")],
            "hovertemplate": "%{text}<extra></extra>",
        },
    ]
    return design.chart(
        theme,
        traces,
        shapes=[design.upright(reference.value, {"color": theme.warn, "width": 1.4, "dash": "dash"})],
        annotations=[
            {
                "x": reference.value,
                "y": 1,
                "yref": "paper",
                "yanchor": "bottom",
                "text": reference.name,
                "showarrow": False,
                "font": {"size": 11, "color": theme.warn},
            }
        ],
        # Ticks half a percent apart would all be rounded to the same ones.
        xaxis={"range": ends, "tickformat": ".1%" if ends[1] - ends[0] < 0.06 else ".0%", "fixedrange": True},
        yaxis={
            "range": [len(order) - 0.5, -0.5],
            "tickvals": list(range(len(order))),
            "ticktext": labels,
            "showgrid": False,
            "zeroline": False,
            "fixedrange": True,
            "automargin": True,
        },
        height=_ROW_PX * max(1, len(order)) + 58,
        margin={"l": 8, "r": 14, "t": 22, "b": 30},
        showlegend=False,
    )


def dots_text(count: int) -> str:
    """What a dot of the figure is, for the line under it."""
    return "one dot each" if count <= MOST_DOTS else f"{MOST_DOTS:,} of {count:,} dots drawn at random"


def _few(dots: pd.DataFrame, here: str | None) -> pd.DataFrame:
    """At most MOST_DOTS, always the same ones, and always those of the run shown."""
    if len(dots) <= MOST_DOTS:
        return dots
    mine = dots["run_id"] == here
    return pd.concat([dots[~mine].sample(max(0, MOST_DOTS - int(mine.sum())), random_state=0), dots[mine]])


def _hover(row: dict[str, float]) -> str:
    lines = [
        f"<b>{row['group']}</b>: mean {numbers.share(row['mean'])} of {numbers.several(int(row['runs']), 'run')}"
    ]
    if not numbers.is_missing(row["low"]):
        lines.append(f"95 % interval {numbers.share(row['low'])} to {numbers.share(row['high'])}")
    if not numbers.is_missing(row["sd"]):
        lines.append(f"spread over prompts {numbers.share(row['sd'])}")
    lines.append(f"lowest {numbers.share(row['least'])}, highest {numbers.share(row['most'])}")
    return "<br>".join(lines)


def _range(values: pd.Series, groups: pd.DataFrame, reference: float) -> Sequence[float]:
    """All values with a little air; a share stays within [0, 1]."""
    ends = [reference, *values.dropna(), *groups["low"].dropna(), *groups["high"].dropna()]
    low, high = min(ends), max(ends)
    air = max(0.02, 0.08 * (high - low))
    edge = 0.04 * (high - low + 2 * air)
    return [max(-edge, low - air), min(1 + edge, high + air)]
