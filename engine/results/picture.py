"""What a method loses over what it reads, as SVG without a script; colours are classes, for light and dark."""

from __future__ import annotations

import math
from collections.abc import Sequence
from html import escape

from routesparse.engine.results.evaluations import OURS, MethodRow
from routesparse.engine.results.tables import beyond, loss_ends, on_front
from routesparse.engine.results.wording import signed

_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 26, 980, 400
_AREAS = (0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5, 1.0)
_OFFSETS = (16, -8, 28, -20, 40)  # of a name from its point
_STEPS = [factor * 10.0**power for power in range(-4, 6) for factor in (1, 2, 5)]  # between two ticks
_RIGHT, _BOTTOM = 170, 44  # right: room for the outermost point's name


def area_picture(rows: Sequence[MethodRow], unit: str, name: str) -> str:
    """Every method a point with its interval: filled ours, hollow others; a line through the front of the estimates.

    unit: of the differences; name: what stands above it. Rows without area or difference are left out, controls
    that lose more than the picture reaches down are named in it.
    """
    known = [row for row in rows if row.area and row.change is not None]
    if not known:
        return ""
    lost = beyond(known)
    points = [
        (row, row.area, row.change)
        for row in known
        if row not in lost and row.area and row.change is not None
    ]
    lowest, highest = loss_ends(known)
    least = min(area for _, area, _ in points) * 0.85
    step = next(s for s in _STEPS if (highest - lowest) / s <= 6)

    def x(area: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * math.log(area / least) / math.log(1 / least), 1)

    def y(value: float) -> float:
        return round(
            _TOP + (_HEIGHT - _TOP - _BOTTOM) * (highest - max(value, lowest)) / (highest - lowest), 1
        )

    ticks = [
        f'<path class="line" d="M{_LEFT} {y(i * step)}H{_WIDTH - _RIGHT}"/><text x="{_LEFT - 6}" y="{y(i * step) + 4}" '
        f'text-anchor="end">{i * step:g}</text>'
        for i in range(math.ceil(lowest / step), math.floor(highest / step) + 1)
    ]
    ticks += [
        f'<text x="{x(area)}" y="{_HEIGHT - 24}" text-anchor="middle">{100 * area:g} %</text>'
        for area in _AREAS
        if area >= least
    ]
    best = on_front(known)
    line = sorted(
        ((row.area or 0, row) for row, one in zip(known, best, strict=True) if one and row not in lost),
        key=lambda point: point[0],
    )
    path = "".join(
        f"{'L' if place else 'M'}{x(area)} {y(row.change.value)}"
        for place, (area, row) in enumerate(line)
        if row.change is not None
    )
    marks = []
    taken: list[tuple[float, float]] = []
    for row, area, change in sorted(points, key=lambda point: (point[0].name != OURS, point[1])):
        at_x, at_y = x(area), y(change.value)
        fill = "accent" if row.method.startswith("routesparse") else "hollow"
        marks.append(
            f'<path class="whisker" d="M{at_x} {y(change.low)}V{y(change.high)}"/>'
            f'<circle class="{fill}" cx="{at_x}" cy="{at_y}" r="5"/>'
        )
        free = (
            at_y + offset
            for offset in _OFFSETS
            if all(
                abs(at_y + offset - other_y) >= 12 or abs(at_x - other_x) >= 170 for other_x, other_y in taken
            )
        )
        text_y = next(free, None)  # where there is no room the table below has the name
        if text_y is not None:
            taken.append((at_x, text_y))
            marks.append(f'<text x="{at_x + 9}" y="{text_y:.1f}" font-size="11">{escape(row.name)}</text>')
    below = ", ".join(f"{row.name} {signed(row.change.value)}" for row in lost if row.change is not None)
    note = (
        f'<text x="{_WIDTH - 6}" y="14" text-anchor="end">below the picture: {escape(below)}</text>'
        if below
        else ""
    )
    label = f"{name}: {len(points)} methods, difference to dense over area; the table below has the numbers."
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{_WIDTH}" height="{_HEIGHT}" '
        f'viewBox="0 0 {_WIDTH} {_HEIGHT}"><g class="axis" font-size="12">'
        f'<text x="2" y="14">{escape(name)}: {escape(unit)} against dense ↑</text>{note}{"".join(ticks)}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">share of the causal area read, logarithmic →</text></g>'
        f'<path class="front" d="{path}"/>{"".join(marks)}</svg>'
    )


STYLE = (
    "body{max-width:1360px;overflow-wrap:normal}p{overflow-wrap:anywhere}"
    "th[scope=row]{min-width:0}td:not(.left) bdi,th bdi{white-space:nowrap}"
    "svg .accent{fill:var(--accent)}svg .hollow{fill:var(--panel);stroke:var(--ink);stroke-width:1.6}"
    "svg .whisker{stroke:var(--mute);stroke-width:1.2}svg .front{fill:none;stroke:var(--accent);stroke-width:1.6}"
)
