"""What pages are made of: cards with their titles, quiet lines, and figures with their names."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from html import escape

import streamlit as st

from routesparse.app.ui import glossary, numbers

# Values that say that there is no figure are printed quietly.
_QUIET = (numbers.NOT_MEASURED, "does not apply", "no calibration", "no limit")


@contextmanager
def card(key: str, title: str = "", term: str | None = None) -> Iterator[None]:
    """A part of a page in a frame; term: of the glossary, explained behind the title."""
    with st.container(border=True, key=f"card-{key}", gap="xsmall"):
        if title:
            st.html(heading(title, term))
        yield


def heading(title: str, term: str | None = None) -> str:
    """HTML of a card's title."""
    return f'<div class="rs-h">{escape(title, quote=False)}{glossary.mark(term) if term else ""}</div>'


def sub(text: str) -> None:
    """A line in the pages' quieter colour."""
    st.html(f'<div class="rs-sub">{escape(text, quote=False)}</div>')


def note(text: str) -> None:
    """A small line, as below charts."""
    st.html(f'<div class="rs-note">{escape(text, quote=False)}</div>')


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


def scale_html(low: str, high: str, colors: Sequence[str], more: str = "") -> str:
    """A legend: colours from one end to the other; more: HTML of further items."""
    bar = f'<i style="width:110px;margin:0;background:linear-gradient(90deg,{", ".join(colors)})"></i>'
    return f'<div class="rs-legend"><span>{low}</span><span>{bar}</span><span>{high}</span>{more}</div>'


def _name(name: str, term: Sequence[str]) -> str:
    return escape(name) + (glossary.mark(term[0]) if term else "")


def _style(value: str) -> str:
    return "none" if value in _QUIET else ""
