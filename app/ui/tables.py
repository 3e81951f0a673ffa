"""The frame of every small table: it scrolls sideways where it must, by keyboard too."""

from __future__ import annotations


def framed(rows: str, style: str = "") -> str:
    """HTML of a table. rows: its ``<tr>`` elements. style: of the table."""
    styled = f' style="{style}"' if style else ""
    return f'<div class="rs-table" tabindex="0"><table{styled}>{rows}</table></div>'
