"""The frame of every small table: it scrolls sideways where it must, by keyboard too."""

from __future__ import annotations


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
