"""What a method loses over what it reads, as SVG without a script; colours are classes, for light and dark."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from routesparse.engine.results.evaluations import MethodRow
from routesparse.engine.results.tables import on_front

_LEFT, _TOP, _WIDTH, _HEIGHT = 60, 26, 980, 400
_RIGHT, _BOTTOM = 170, 44  # right: room for the outermost point's name


def area_picture(rows: Sequence[MethodRow], unit: str, name: str) -> str:
    """Every method a point with its interval: filled ours, hollow others; a line through the front of the estimates.

    unit: of the differences; name: for the alternative text. Rows without area or difference are left out.
    """
    drawn = [(row, row.area, row.change) for row in rows]
    points = [(row, area, change) for row, area, change in drawn if area is not None and change is not None]
    if not points:
        return ""
    lowest = min(0.0, *(change.low for _, _, change in points))
    highest = max(0.0, *(change.high for _, _, change in points))
    step = next(s for s in _steps() if (highest - lowest or 1.0) / s <= 6)
    widest = max(area for _, area, _ in points)
    across = next(s for s in (0.02, 0.05, 0.1, 0.2) if widest / s <= 8 or s == 0.2)

    def x(area: float) -> float:
        return round(_LEFT + (_WIDTH - _LEFT - _RIGHT) * area / widest, 1)

    def y(value: float) -> float:
        span = highest - lowest or 1.0
        return round(_TOP + (_HEIGHT - _TOP - _BOTTOM) * (highest - value) / span, 1)

    ticks = [
        f'<path class="line" d="M{_LEFT} {y(i * step)}H{_WIDTH - _RIGHT}"/><text x="{_LEFT - 6}" y="{y(i * step) + 4}" '
        f'text-anchor="end">{i * step:+g}</text>'
        for i in range(int(lowest / step), int(highest / step) + 1)
    ]
    ticks += [
        f'<text x="{x(i * across)}" y="{_HEIGHT - 24}" text-anchor="middle">{100 * i * across:.0f} %</text>'
        for i in range(int(widest / across + 1e-9) + 1)
    ]
    best = on_front([row for row, _, _ in points])
    line = sorted((area, change.value) for (_, area, change), one in zip(points, best, strict=True) if one)
    path = "".join(f"{'L' if place else 'M'}{x(area)} {y(value)}" for place, (area, value) in enumerate(line))
    marks = []
    taken: list[tuple[float, float]] = []
    for row, area, change in sorted(points, key=lambda point: (point[1], point[2].value)):
        at_x, at_y = x(area), y(change.value)
        ours = row.method.startswith("routesparse")
        fill = "accent" if ours else "hollow"
        text_y = at_y + 4
        while any(abs(text_y - other_y) < 12 and abs(at_x - other_x) < 190 for other_x, other_y in taken):
            text_y += 12
        taken.append((at_x, text_y))
        marks.append(
            f'<path class="whisker" d="M{at_x} {y(change.low)}V{y(change.high)}"/>'
            f'<circle class="{fill}" cx="{at_x}" cy="{at_y}" r="5"/>'
            f'<text x="{at_x + 9}" y="{text_y:.1f}" font-size="11">{escape(row.name)}</text>'
        )
    deepest = max([_HEIGHT, *(place + 8 for _, place in taken)])
    label = f"{name}: {len(points)} methods, difference to dense over area; the table below has the numbers."
    return (
        f'<svg role="img" aria-label="{escape(label)}" width="{_WIDTH}" height="{deepest:.0f}" '
        f'viewBox="0 0 {_WIDTH} {deepest:.0f}"><g class="axis" font-size="12">'
        f'<text x="2" y="14">{escape(unit)} against dense ↑</text>{"".join(ticks)}'
        f'<text x="{_LEFT}" y="{_HEIGHT - 6}">share of the causal area read →</text></g>'
        f'<path class="front" d="{path}"/>{"".join(marks)}</svg>'
    )


STYLE = (
    "svg .accent{fill:var(--accent)}svg .hollow{fill:var(--panel);stroke:var(--ink);stroke-width:1.6}"
    "svg .whisker{stroke:var(--mute);stroke-width:1.2}svg .front{fill:none;stroke:var(--accent);stroke-width:1.6}"
)


def _steps() -> list[float]:
    return [factor * 10.0**power for power in range(-4, 6) for factor in (1, 2, 5)]
