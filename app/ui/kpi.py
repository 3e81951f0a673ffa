"""The row of figures at the top of a page: name, value, what it is of, and a term of the glossary."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from routesparse.app.ui import glossary, numbers

_QUIET = (numbers.NOT_MEASURED, "no limit")


def render(boxes: Sequence[tuple[str, str, str, str]]) -> None:
    """Boxes of (name, value, note, term); a value that says that there is none is quiet."""
    html = "".join(
        f"<div><span>{escape(name)}{glossary.mark(term)}</span>"
        f'<b class="{"none" if value in _QUIET else ""}">{escape(value)}</b><small>{escape(note)}</small></div>'
        for name, value, note, term in boxes
    )
    st.html(f'<div class="rs-kpi">{html}</div>')
