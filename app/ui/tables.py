"""Small tables as HTML, which scroll sideways where they must, by keyboard too; and text in their cells."""

from __future__ import annotations

from collections.abc import Collection, Iterable, Sequence
from html import escape

import pandas as pd

from routesparse.app.ui import design

_LONG = 34  # characters of a cell of words that may wrap


def table(
    heads: Sequence[str],
    lines: Iterable[Sequence[str]],
    left: Collection[int] = (0,),
    picked: Collection[int] = (),
) -> str:
    """HTML of a table. heads: names, or th elements; lines: cells as HTML, or td elements; left: columns of words;
    picked: the lines that are marked."""
    rows = [_row("th", heads, left)] if heads else []
    for place, line in enumerate(lines):
        rows.append(_row("td", line, left, ' class="pick"' if place in picked else ""))
    return f'<div class="rs-table" tabindex="0"><table>{"".join(rows)}</table></div>'


def of_rows(rows: pd.DataFrame, left: Collection[int] = (0,)) -> str:
    """HTML of a frame whose cells are text already."""
    lines = rows.astype(str).itertuples(index=False)
    return table([escape(name) for name in rows], ([escape(cell) for cell in line] for line in lines), left)


def _row(tag: str, cells: Sequence[str], left: Collection[int], style: str = "") -> str:
    return (
        f"<tr{style}>"
        + "".join(_cell(tag, cell, place in left) for place, cell in enumerate(cells))
        + "</tr>"
    )


def _cell(tag: str, html: str, left: bool) -> str:
    if html.startswith(("<td", "<th")):
        return html
    long = tag == "td" and len(html) > _LONG and "<" not in html
    style = f' class="{"l say" if long else "l"}"' if left else ""
    return f"<{tag}{style}>{html}</{tag}>"


def unbroken(text: str) -> str:
    """Escaped, and no line ends between a number and its per cent sign."""
    return escape(text).replace(" %", "&nbsp;%")


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
