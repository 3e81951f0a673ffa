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
