"""The picture of one unit's candidates: risk against predicted time."""

from __future__ import annotations

from typing import Any

import pandas as pd

from routesparse.app.ui import design, numbers, plot, reason_words
from routesparse.engine.store import frames

_LEAST_LINE = 1e-4  # a lower risk has no place beside the candidates


def scatter(
    candidates: pd.DataFrame,
    gate_threshold: float | None,
    tau: float,
    theme: design.Theme,
    tau_name: str = "1 − τ",
) -> dict[str, Any]:
    """Risk against predicted time: filled where g >= lambda, the choice ringed. gate_threshold: lambda of the unit,
    None where it was not recorded; tau: of its own certificate; tau_name: of its line."""
    positive = candidates.loc[candidates["risk"] > 0, "risk"]
    floor = max(float(positive.min()) * 0.5 if len(positive) else 0.005, 1e-4)
    # Nothing at or below 0 has a place on a logarithmic axis.
    times = candidates["kernel_us"].clip(lower=1e-3)
    shown = candidates.assign(height=candidates["risk"].clip(lower=floor), kernel_us=times)
    # A little air: the outermost marks stay whole, and equal times have an axis.
    x = plot.logarithmic("predicted kernel time, µs", float(times.min()) / 1.12, float(times.max()) * 1.12)
    lines = [
        (1 - at, name, color, dy)
        for at, name, color, dy in (
            (gate_threshold, "1 − λ", theme.accent, 12),
            (tau, tau_name, theme.warn, -4),
        )
        if at is not None and 1 - at >= _LEAST_LINE
    ]
    heights = [line[0] for line in lines]
    y = plot.logarithmic(
        "risk R", min([floor, *heights]) / 1.4, max([1.0, float(shown["height"].max()), *heights]) * 1.25
    )
    # Lines first: the candidates stand over them.
    marks = [plot.line(x.range, [height] * 2, color, 1.2) for height, _, color, _ in lines]
    # Candidates may share their place: the chosen one is drawn last.
    family = shown.groupby("pattern")["chosen"].transform("any")
    drawn = shown.assign(family=family).sort_values(["family", "chosen"], kind="stable")
    for pattern, rows in drawn.groupby("pattern", sort=False):
        color = theme.pattern(str(pattern))
        filled = rows["admissible"].tolist()
        marks.append(
            plot.points(
                rows["kernel_us"],
                rows["height"],
                [color if f else theme.panel for f in filled],
                "{0}\n{1} µs predicted · risk {2} · g {3}\n{4}",
                [
                    [
                        row.budget,
                        f"{row.kernel_us:,.0f}",
                        numbers.mass(row.risk),
                        numbers.mass(row.gate_statistic),
                        reason_words.shown(str(row.reason)),
                    ]
                    for row in frames.rows(rows)
                ],
                size=16,
                edge=color,
                edge_width=1.4,
                letters=[design.letter(str(pattern))] * len(rows),
                inks=[design.text_on(color) if f else theme.ink for f in filled],
            )
        )
    chosen = shown[shown["chosen"]]
    place = chosen["kernel_us"], chosen["height"]
    marks.append(plot.points(*place, "none", "", [], size=23, edge=theme.ink, edge_width=2))
    marks += [plot.label(x.range[1], height, name, color, "end", dy=dy) for height, name, color, dy in lines]
    return plot.chart(x, y, marks, 270, theme)
