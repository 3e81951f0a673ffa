"""Figures of the report as SVG that needs no script: the routing map of a segment, and the time of each layer.

Colours are classes, so that one drawing serves light and dark; every cell has its letter. Strength has 16 steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Sequence
from html import escape

from routesparse.engine.export import numbers, palette
from routesparse.engine.export.plain_text import visible
from routesparse.engine.method import families
from routesparse.engine.rows import HeadChoiceRow, LayerRow, is_uncertified

_STEPS = 15
_LEFT, _TOP, _WIDTH = 52, 40, 980
_MOST_CELL, _VALUES_FROM = 92, 60  # pixels of a cell's width; from where on its density stands in it
_MARKS = (("dense", "dense by fallback"), ("expand", "expanded"), ("uncertified", "ran uncertified"))


class Colors:
    """The classes of cells that a page uses, and their rules."""

    def __init__(self, patterns: Iterable[str]) -> None:
        self._patterns = families.in_order(set(patterns))

    def cell(self, pattern: str, density: float) -> str:
        """The class that fills a cell."""
        return f"p{self._patterns.index(pattern)}s{round(palette.strength(density) * _STEPS)}"

    def ink(self, pattern: str, density: float) -> str:
        """The class of what is written on it: black or white (0 or 1) in light and in dark."""
        step = round(palette.strength(density) * _STEPS)
        inks = (
            palette.text_on(_color(theme, pattern, step)) == "#ffffff"
            for theme in (palette.LIGHT, palette.DARK)
        )
        return "ink" + "".join(str(int(white)) for white in inks)

    def css(self) -> str:
        """Rules of every class that ``cell`` may give."""

        def rules(theme: palette.Theme) -> str:
            return "".join(
                f".p{i}s{step}{{fill:{_color(theme, pattern, step)}}}"
                for i, pattern in enumerate(self._patterns)
                for step in range(_STEPS + 1)
            )

        dark = rules(palette.DARK)
        return f"{rules(palette.LIGHT)}@media screen and (prefers-color-scheme:dark){{{dark}}}"

    def legend(self, choices: Sequence[HeadChoiceRow]) -> str:
        """A list: letter and colour of each pattern with its number of units, strength by density, the marks."""
        counts = Counter(choice.pattern for choice in choices)
        items = [
            f"<li>{self._swatch(name, 1.0, palette.letter(name))}{_text(palette.name(name))}, {counts[name]:,} units"
            "</li>"
            for name in self._patterns
            if counts[name]
        ]
        first = next(iter(counts), families.DENSE)
        scale = "".join(self._swatch(first, density, "") for density in (0.01, 0.03, 0.1, 0.3, 1.0))
        items.append(f"<li>keeps {scale} 1, 3, 10, 30, 100 % of the causal area</li>")
        items += [
            f'<li><svg width="16" height="16" aria-hidden="true"><path class="planned" fill="currentColor" '
            f'd="{_mark(kind, 1, 1, 14, 14, 9)}"/></svg>{told}</li>'
            for kind, told in _MARKS
        ]
        return f'<ul class="legend">{"".join(items)}</ul>'

    def _swatch(self, pattern: str, density: float, letter: str) -> str:
        fill, ink = self.cell(pattern, density), self.ink(pattern, density)
        return (
            f'<svg width="18" height="18" aria-hidden="true"><rect class="{fill}" width="18" height="18" rx="3"/>'
            f'<text class="{ink}" x="9" y="13" font-size="12" text-anchor="middle">{escape(letter)}</text></svg>'
        )


def routing_map(
    choices: Sequence[HeadChoiceRow], layers: int, heads: int, tau: float, colors: Colors, name: str
) -> str:
    """The map of one segment of one prompt: layers down, heads across. name: for the alternative text."""
    cell = min(_MOST_CELL, (_WIDTH - _LEFT) / heads)
    row = 40 if cell >= _VALUES_FROM and layers <= 16 else 20
    width, height = _LEFT + heads * cell + 2, _TOP + layers * row + 4
    letters: dict[tuple[str, float], tuple[list[str], list[str]]] = {}
    shapes, values, marks = [], [], []
    for choice in choices:
        x, y = _LEFT + choice.head * cell, _TOP + choice.layer * row
        fill = colors.cell(choice.pattern, choice.density)
        ink = colors.ink(choice.pattern, choice.density)
        shapes.append(
            f'<rect class="{fill}" x="{x + 1:.1f}" y="{y + 1}" width="{cell - 2:.1f}" height="{row - 2}"/>'
        )
        line = letters.setdefault((ink, y + (17 if row == 40 else 14)), ([], []))
        line[0].append(f"{x + cell / 2:.1f}")
        line[1].append(palette.letter(choice.pattern))
        if row == 40:
            values.append(
                f'<text class="{ink}" x="{x + cell / 2:.1f}" y="{y + 32}">{numbers.share(choice.density)}</text>'
            )
        kind = "uncertified" if is_uncertified(choice.pattern, choice.lower_mass, tau) else choice.fallback
        if kind is not None:
            corner = min(8, row / 3, cell / 3)
            marks.append(f'<path class="{ink}" d="{_mark(kind, x + 1, y + 1, cell - 2, row - 2, corner)}"/>')
    written = "".join(
        f'<text class="{ink}" y="{y}" x="{" ".join(places)}">{escape("".join(text))}</text>'
        for (ink, y), (places, text) in letters.items()
    )
    every_head, every_layer = (1 if heads <= 16 else 4), (1 if layers <= 32 else 4)
    axis = "".join(
        f'<text x="{_LEFT + (head + 0.5) * cell:.1f}" y="{_TOP - 6}" text-anchor="middle">{head}</text>'
        for head in range(0, heads, every_head)
    ) + "".join(
        f'<text x="{_LEFT - 6}" y="{_TOP + (layer + 0.5) * row + 4:.1f}" text-anchor="end">{layer}</text>'
        for layer in range(0, layers, every_layer)
    )
    counts = Counter(palette.name(choice.pattern) for choice in choices)
    told = ", ".join(f"{count:,} {pattern}" for pattern, count in counts.most_common())
    label = f"Routing map of {name}: {layers} layers by {heads} heads. Units: {told}."
    return (
        f'<svg role="img" aria-label="{_text(label)}" width="{width:.0f}" height="{height}" '
        f'viewBox="0 0 {width:.0f} {height}">'
        f'<g class="axis" font-size="12"><text x="{_LEFT}" y="14">head →</text>'
        f'<text x="2" y="{_TOP - 6}">layer ↓</text>{axis}</g>{"".join(shapes)}'
        f'<g font-size="13" font-weight="650" text-anchor="middle">{written}</g>'
        f'<g font-size="11" text-anchor="middle">{"".join(values)}</g>{"".join(marks)}</svg>'
    )


def layer_times(rows: Sequence[LayerRow]) -> str:
    """Per layer a bar of the measured time, a line at the predicted one, a dashed one at T_l where there is one."""
    longest = max((max(measured_us(r), r.planned_us, r.limit_us or 0) for r in rows), default=0) or 1.0
    step = next(s for s in _round_steps() if longest / s <= 6)
    left, right, row = _LEFT, _WIDTH - 20, 18
    bottom = _TOP + len(rows) * row

    def at(time_us: float) -> float:
        return round(left + (right - left) * time_us / longest, 1)

    ticks = "".join(
        f'<path class="line" d="M{at(i * step)} {_TOP - 2}V{bottom}"/>'
        f'<text x="{at(i * step)}" y="{_TOP - 6}" text-anchor="middle">{i * step / 1000:g}</text>'
        for i in range(int(longest / step) + 1)
    )
    drawn = []
    for place, layer in enumerate(rows):
        y = _TOP + place * row
        drawn.append(
            f'<text x="{left - 6}" y="{y + 13}" text-anchor="end" font-size="11">{layer.layer}</text>'
        )
        drawn.append(
            f'<rect class="bar" x="{left}" y="{y + 4}" width="{at(measured_us(layer)) - left:.1f}" height="10"/>'
        )
        drawn.append(f'<path class="planned" d="M{at(layer.planned_us)} {y + 2}v14"/>')
        if layer.limit_us is not None:
            drawn.append(f'<path class="limit" d="M{at(layer.limit_us)} {y + 1}v16"/>')
    return (
        f'<svg role="img" aria-label="Measured and predicted time of each layer; the table below has the numbers." '
        f'width="{_WIDTH}" height="{bottom + 4}" viewBox="0 0 {_WIDTH} {bottom + 4}"><g class="axis" font-size="12">'
        f'<text x="{left}" y="14">milliseconds →</text><text x="2" y="{_TOP - 6}">layer ↓</text>{ticks}</g>'
        f"{''.join(drawn)}</svg>"
    )


def measured_us(row: LayerRow) -> float:
    """What a layer's attention took in all."""
    return row.probe_us + row.index_us + row.route_us + row.kernel_us


def _round_steps() -> Iterable[float]:
    power = 1e-3
    while True:
        yield from (power, 2 * power, 5 * power)
        power *= 10


def _mark(kind: str, x: float, y: float, width: float, height: float, size: float) -> str:
    """The mark in a cell's corner as a path."""
    right, bottom = f"M{x + width:.1f} {y:.1f}", f"M{x + width:.1f} {y + height:.1f}"
    if kind == "dense":
        return f"{right}v{size:.1f}h{-size:.1f}v{-size:.1f}z"
    if kind == "expand":
        return f"{right}v{size:.1f}l{-size:.1f} {-size:.1f}z"
    return f"{bottom}v{-size:.1f}l{-size:.1f} {size:.1f}z"


def _color(theme: palette.Theme, pattern: str, step: int) -> str:
    return palette.blend(
        theme.panel, theme.pattern(pattern), palette.PALEST + (1 - palette.PALEST) * step / _STEPS
    )


def _text(text: str) -> str:
    return escape(visible(text))
