"""The chart of an evaluation: loss over area, points with their intervals."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from routesparse.app.ui import design, plot
from routesparse.engine.results import wording
from routesparse.engine.results.evaluations import OURS, MethodRow
from routesparse.engine.results.tables import loss_ends, on_front

_TICKS = (0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_HOVER = "{0}\n{1} {2}\nreads {3} of the area\nn = {4}"


def loss_over_area(rows: Sequence[MethodRow], unit: str, theme: design.Theme) -> dict[str, Any]:
    """Every method that read something and was compared; filled: ours; the line: the front of the estimates."""
    known = [(row, row.area, row.change) for row in rows if row.area and row.change is not None]
    best = on_front([row for row, _, _ in known])
    low, high = loss_ends([row for row, _, _ in known])
    least = min((area for _, area, _ in known), default=0.1) * 0.85
    x = plot.Axis(
        "share of the causal area read",
        (least, 1.25),
        [(tick, f"{100 * tick:g} %") for tick in _TICKS if tick > least],
        log=True,
    )
    y = plot.linear(f"against dense, {unit}", low, high, most=8)
    line = sorted((area, change.value) for (_, area, change), one in zip(known, best, strict=True) if one)
    drawn = [one for one in known if low <= one[2].value <= high]
    ends = [[area, change.low, area, change.high] for _, area, change in drawn]
    marks = [
        plot.line([area for area, _ in line], [value for _, value in line], theme.accent, 1.6),
        plot.whiskers(ends, theme.mute),
    ]
    for ours, color in ((False, theme.panel), (True, theme.accent)):
        part = [one for one in drawn if one[0].method.startswith("routesparse") == ours]
        marks.append(
            plot.points(
                [area for _, area, _ in part],
                [change.value for _, _, change in part],
                color,
                _HOVER,
                [_told(row, area, unit) for row, area, _ in part],
                "circle" if ours else "diamond",
                [15 if row.name == OURS else 10 for row, _, _ in part],
                edge=theme.accent if ours else theme.ink,
                edge_width=1.4,
            )
        )
    order = sorted(drawn, key=lambda one: (one[0].name != OURS, (one[1], one[2].value) not in line))
    strokes = [line, *(((area, change.low), (area, change.high)) for _, area, change in drawn)]
    named = [(area, change.value, row.name) for row, area, change in order]
    marks.append(plot.beside(named, theme.ink, strokes))
    return plot.chart(x, y, marks, 380, theme)


def _told(row: MethodRow, area: float, unit: str) -> list[str]:
    return [row.name, wording.change(row), unit, f"{100 * area:.1f} %", wording.prompts(row)]
