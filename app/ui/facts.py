"""Figures with their names, as HTML: a row of boxes at the top of a page, or one line each."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

from routesparse.app.ui import glossary, numbers

DOES_NOT_APPLY = "does not apply"
NO_CALIBRATION = "no calibration"
# Values that say that there is no figure are printed quietly.
_QUIET = (numbers.NOT_MEASURED, DOES_NOT_APPLY, NO_CALIBRATION, "no limit")


def boxes_html(boxes: Sequence[tuple[str, ...]]) -> str:
    """Boxes of (name, value, note) and perhaps a term of the glossary, side by side."""
    html = "".join(
        f"<div><span>{_name(name, term)}</span>"
        f'<b class="{_style(value)}">{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note, *term in boxes
    )
    return f'<div class="rs-kpi">{html}</div>'


def lines_html(pairs: Sequence[tuple[str, ...]]) -> str:
    """Name, value and perhaps a term of the glossary, line by line."""
    html = "".join(
        f'<span>{_name(name, term)}</span><b class="{_style(value)}">{escape(value)}</b>'
        for name, value, *term in pairs
    )
    return f'<div class="rs-pair">{html}</div>'


def _name(name: str, term: Sequence[str]) -> str:
    return escape(name) + (glossary.mark(term[0]) if term else "")


def _style(value: str) -> str:
    return "none" if value in _QUIET else ""
