"""The frame of every small table, which scrolls sideways where it must, by keyboard too; and text in its cells."""

from __future__ import annotations

from html import escape


def unbroken(text: str) -> str:
    """Escaped, and no line ends between a number and its per cent sign."""
    return escape(text).replace(" %", "&nbsp;%")


def framed(rows: str, style: str = "") -> str:
    """HTML of a table. rows: its ``<tr>`` elements. style: of the table."""
    styled = f' style="{style}"' if style else ""
    return f'<div class="rs-table" tabindex="0"><table{styled}>{rows}</table></div>'


def sideways(more: str = "") -> str:
    """In a narrow window: where the columns of a grid are that have no room. Its own scrollbar shows only under the
    pointer."""
    return (
        '<div class="rs-note rs-narrow">Columns without room in this window stand to the right: scroll the table '
        f"sideways{more}.</div>"
    )
