"""The report's routing map as a table that needs no script: colour and letter of a cell are its pattern's.

Colours are classes, so that one table serves light and dark; strength has 16 steps.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Collection, Sequence

from routesparse.engine.export import numbers, palette
from routesparse.engine.export.report_html import text
from routesparse.engine.method import families
from routesparse.engine.rows import HeadChoiceRow, is_uncertified

_STEPS = 15
_MOST_WITH_DENSITY = 12  # heads of a map whose cells have room for it
_MARKS = {
    "dense": ("■", "dense by fallback"),
    "expand": ("◥", "expanded"),
    "uncertified": ("◢", "ran without certified mass"),
}


def css(patterns: Collection[str]) -> str:
    """The rules of every cell's class, in light and in dark."""

    def rules(theme: palette.Theme) -> str:
        parts = []
        for place, pattern in enumerate(families.in_order(set(patterns))):
            for step in range(_STEPS + 1):
                share = palette.PALEST + (1 - palette.PALEST) * step / _STEPS
                color = palette.blend(theme.panel, theme.pattern(pattern), share)
                parts.append(f".p{place}s{step}{{background:{color};color:{palette.text_on(color)}}}")
        return "".join(parts)

    return f"{rules(palette.LIGHT)}@media screen and (prefers-color-scheme:dark){{{rules(palette.DARK)}}}"


def legend(choices: Sequence[HeadChoiceRow]) -> str:
    """Letter and colour of each pattern with its number of units, strength by density, the marks."""
    counts = Counter(choice.pattern for choice in choices)
    order = families.in_order(set(counts))
    items = [
        f'<i class="p{place}s{_STEPS}">{text(palette.letter(name))}</i>{text(palette.name(name))}, '
        f"{counts[name]:,} units"
        for place, name in enumerate(order)
        if counts[name]
    ]
    scale = "".join(f'<i class="p0s{_step(density)}"></i>' for density in (0.01, 0.03, 0.1, 0.3, 1.0))
    items.append(f"keeps {scale} 1, 3, 10, 30, 100 % of the causal area")
    items += [f"{sign} {told}" for sign, told in _MARKS.values()]
    return f'<ul class="legend">{"".join(f"<li>{item}</li>" for item in items)}</ul>'


def table(
    cells: Sequence[HeadChoiceRow], shape: tuple[int, int], tau: float, patterns: Collection[str], name: str
) -> str:
    """The map of one segment of one prompt: layers down, heads across. patterns: those given to ``css``."""
    layers, heads = shape
    order = families.in_order(set(patterns))
    drawn = {(cell.layer, cell.head): _cell(cell, tau, order, heads) for cell in cells}
    rows = (
        f'<tr><th scope="row">{layer}</th>'
        + "".join(drawn.get((layer, head), "<td></td>") for head in range(heads))
        + "</tr>"
        for layer in range(layers)
    )
    across = "".join(f'<th scope="col">{head}</th>' for head in range(heads))
    return (
        f'<div class="wide" tabindex="0" role="group" aria-label="{text(f"Routing map of {name}")}">'
        f'<table class="map"><caption>{text(name[0].upper() + name[1:])}</caption><thead><tr><th scope="col">'
        f"layer ↓ head →</th>{across}</tr></thead><tbody>{''.join(rows)}</tbody></table></div>"
    )


def _cell(cell: HeadChoiceRow, tau: float, order: list[str], heads: int) -> str:
    kind = "uncertified" if is_uncertified(cell.pattern, cell.lower_mass, tau) else cell.fallback
    mark = "" if kind is None else f" {_MARKS[kind][0]}"
    density = f"<small>{numbers.share(cell.density)}</small>" if heads <= _MOST_WITH_DENSITY else ""
    kept = f"p{order.index(cell.pattern)}s{_step(cell.density)}"
    return f'<td class="{kept}">{text(palette.letter(cell.pattern))}{mark}{density}</td>'


def _step(density: float) -> int:
    return round(palette.strength(density) * _STEPS)
