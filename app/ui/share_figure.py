"""Shares by group: a diamond for the mean, a bar for the interval, a dot per prompt below, and one reference line."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import design, numbers, plot
from routesparse.engine.store import frames

MOST_DOTS = 400  # more of them hide one another, and each costs the browser
_ROW_PX = 38
_NEAR = 4  # times the width of all values that the reference may lie beside them


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
) -> dict[str, Any]:
    """groups: rows of prompt_stats.by_group, drawn from the top; dots: ``group``, ``value``, ``label``, ``run_id``.

    The dots of the run ``here`` are filled. The axis covers all values, never more than [0, 1], and the reference, but
    for one so far from them that it would squeeze them: it is named at the edge.
    """
    order = list(groups["group"])
    place = {name: i for i, name in enumerate(order)}
    dots = _few(dots.dropna(subset=["value"]), here)
    # Below the diamond, which would hide those that are near the mean.
    shift = np.random.default_rng(0).uniform(0.26, 0.42, len(dots))
    mine = (dots["run_id"] == here).to_numpy()
    pale = design.blend(theme.panel, theme.accent, 0.55)
    known = groups.dropna(subset=["mean"])
    marks = [
        plot.points(
            dots["value"],
            dots["group"].map(place).to_numpy() + shift,
            [theme.accent if m else pale for m in mine],
            "{0}\n{1}",
            [
                [label, numbers.share(value)]
                for label, value in zip(dots["label"], dots["value"], strict=True)
            ],
            size=[9 if m else 6 for m in mine],
            edge=theme.panel,
        ),
        *(
            plot.line([row.low, row.high], [place[row.group]] * 2, theme.ink, 2.5)
            for row in frames.rows(groups.dropna(subset=["low", "high"]))
        ),
        plot.points(
            known["mean"],
            known["group"].map(place),
            theme.ink,
            "{0}",
            [[_hover(row)] for row in known.to_dict("records")],
            "diamond",
            9,
            edge=theme.panel,
            edge_width=1.5,
        ),
    ]
    rows = (len(order) - 0.5, -0.5)
    ends = _range(dots["value"], groups, reference.value)
    if ends[0] <= reference.value <= ends[1]:
        line = [plot.line([reference.value] * 2, rows, theme.warn, 1.4, "5 4")]
        name = plot.label(reference.value, rows[1], reference.name, theme.warn, "middle", dy=-6)
    elif reference.value > ends[1]:
        line, name = [], plot.label(ends[1], rows[1], f"{reference.name} →", theme.warn, "end", dy=-6)
    else:
        line, name = [], plot.label(ends[0], rows[1], f"← {reference.name}", theme.warn, dy=-6)
    labels = [f"{group} · n = {count}" for group, count in zip(order, groups["runs"], strict=True)]
    y_axis = plot.Axis("", rows, list(enumerate(labels)), grid=False)
    x_axis = plot.linear("", *ends, percent=True)
    height = _ROW_PX * max(1, len(order)) + 44
    return plot.chart(x_axis, y_axis, [*line, *marks, name], height, theme, top=22)


def dots_text(count: int) -> str:
    """What a dot of the figure is, for the line under it."""
    return "one dot each" if count <= MOST_DOTS else f"{MOST_DOTS:,} of {count:,} dots drawn at random"


def _few(dots: pd.DataFrame, here: str | None) -> pd.DataFrame:
    """At most MOST_DOTS, always the same ones, and always those of the run shown."""
    if len(dots) <= MOST_DOTS:
        return dots
    mine = dots["run_id"] == here
    return pd.concat([dots[~mine].sample(max(0, MOST_DOTS - int(mine.sum())), random_state=0), dots[mine]])


def _hover(row: dict[str, Any]) -> str:
    lines = [
        f"{row['group']}: mean {numbers.share(row['mean'])} of {numbers.several(int(row['runs']), 'run')}"
    ]
    if not numbers.is_missing(row["low"]):
        lines.append(f"95 % interval {numbers.share(row['low'])} to {numbers.share(row['high'])}")
    if not numbers.is_missing(row["sd"]):
        lines.append(f"spread over prompts {numbers.share(row['sd'])}")
    lines.append(f"lowest {numbers.share(row['least'])}, highest {numbers.share(row['most'])}")
    return "\n".join(lines)


def _range(values: pd.Series, groups: pd.DataFrame, reference: float) -> tuple[float, float]:
    """All values with a little air; a share stays within [0, 1]."""
    ends = [*values.dropna(), *groups["low"].dropna(), *groups["high"].dropna()] or [reference]
    low, high = min(ends), max(ends)
    if max(low - reference, reference - high) <= _NEAR * max(high - low, 0.02):
        low, high = min(low, reference), max(high, reference)
    air = max(0.02, 0.08 * (high - low))
    edge = 0.04 * (high - low + 2 * air)
    return max(-edge, low - air), min(1 + edge, high + air)
