"""The frame of every small table, which scrolls sideways where it must, by keyboard too; and text in its cells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

import pandas as pd

from routesparse.app.ui import design

_LONG = 34  # characters of a cell that may wrap


def unbroken(text: str) -> str:
    """Escaped, and no line ends between a number and its per cent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def framed(rows: str, style: str = "") -> str:
    """HTML of a table. rows: its ``<tr>`` elements. style: of the table."""
    styled = f' style="{style}"' if style else ""
    return f'<div class="rs-table" tabindex="0"><table{styled}>{rows}</table></div>'


def of_rows(rows: pd.DataFrame, left: int = 1) -> str:
    """HTML of cells that are words already; the first ``left`` columns, and long words, stand left."""
    head = "".join(f"<th{' class=l' if i < left else ''}>{escape(name)}</th>" for i, name in enumerate(rows))
    body = "".join(
        "<tr>"
        + "".join(f"<td{_place(i < left, cell)}>{escape(cell)}</td>" for i, cell in enumerate(map(str, row)))
        + "</tr>"
        for row in rows.itertuples(index=False)
    )
    return framed(f"<tr>{head}</tr>{body}")


def _place(left: bool, cell: str) -> str:
    return ' class="l say"' if len(cell) > _LONG else " class=l" if left else ""


def table(heads: Sequence[str], lines: Iterable[Sequence[str]], left: Collection[int] = (0,)) -> str:
    """HTML of a table. heads: names, or th elements; lines: cells as HTML; left: columns of words."""
    sides = [' class="l"' if place in left else "" for place in range(len(heads))]
    names = zip(sides, heads, strict=True)
    head = "".join(name if name.startswith("<th") else f"<th{side}>{name}</th>" for side, name in names)
    body = "".join(
        "<tr>" + "".join(f"<td{side}>{cell}</td>" for side, cell in zip(sides, line, strict=True)) + "</tr>"
        for line in lines
    )
    return framed(f"<tr>{head}</tr>{body}")


def sideways(more: str = "") -> str:
    """In a narrow window: where the columns of a grid are that have no room. Its own scrollbar shows only under the
    pointer."""
    return (
        '<div class="rs-note rs-narrow">Columns without room in this window stand to the right: scroll the table '
        f"sideways{more}.</div>"
    )


def pattern_cell(theme: design.Theme, pattern: str, density: float) -> str:
    """A pattern's letter on its colour, stronger where more is kept."""
    color = design.pattern_color(theme, pattern, density)
    style = f"background:{color};color:{design.text_on(color)}"
    return f'<span class="cell" style="{style}">{design.letter(pattern)}</span>'
