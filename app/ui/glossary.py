"""The terms of the pages (terms.toml), behind question marks."""

from __future__ import annotations

import tomllib
from html import escape
from pathlib import Path

from routesparse.engine.export.wording import CERTIFICATE_SCOPE, HEAD_FLOOR

__all__ = ["CERTIFICATE_SCOPE", "HEAD_FLOOR", "REASONS", "TERMS", "heading", "mark", "name"]

_ENTRIES = tomllib.loads(Path(__file__).with_name("terms.toml").read_text("utf-8"))
TERMS: dict[str, str] = {term: entry["text"] for term, entry in _ENTRIES.items()}
# What a verdict says -> the term that explains it.
REASONS: dict[str, str] = {
    reason: term for term, entry in _ENTRIES.items() for reason in entry.get("reasons", [])
}


def name(term: str) -> str:
    """A term as the page Terms lists it."""
    return str(_ENTRIES[term].get("name", term.replace("_", " ")))


def mark(term: str) -> str:
    """HTML of the question mark: its sentence on hover and on keyboard focus, its equation behind the link."""
    text = escape(TERMS[term])
    return f'<a class="rs-q tip" href="terms?term={term}" target="_blank" aria-label="{text}" data-tip="{text}">?</a>'


def heading(label: str, term: str) -> str:
    """HTML of a table heading with its sentence as title: a table would cut the box off."""
    link = f'<a class="rs-q" href="terms?term={term}" target="_blank">?</a>'
    return f'<th title="{escape(TERMS[term])}">{escape(label)}{link}</th>'
