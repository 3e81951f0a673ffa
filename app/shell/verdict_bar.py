"""The verdict at the top of every page about a run, and its colours and signs for tables."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape

import streamlit as st

from routesparse.app.ui import glossary
from routesparse.engine.store import verdicts
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.verdict import LEVELS, SIGNS, WORDS, Finding, Level, Verdict


def of_run(store: OwnerView, run_id: str) -> None:
    """Draw the verdict on one run: the worst finding in bold, the others below it."""
    found = verdicts.of_run(store, run_id)
    if found is not None:
        st.html(bar_html(found))


def bar_html(found: Verdict) -> str:
    """One colour, one sign, one sentence; then every other finding with its own sign."""
    others = " ".join(
        f'<span><em class="rs-mark {one.level}">{SIGNS[one.level]}</em> {escape(one.text)}.{_why(one)}</span>'
        for one in found.findings[1:]
    )
    return bar(found.level, WORDS[found.level], found.sentence, others, _why(found.findings[0]))


def bar(level: Level, word: str, sentence: str, more_html: str, why_html: str = "") -> str:
    """The bar in a level's colour and sign; more_html stands below the sentence."""
    more = f"<small>{more_html}</small>" if more_html else ""
    return (
        f'<div class="rs-verdict {level}" role="status"><i aria-hidden="true">{SIGNS[level]}</i>'
        f"<div><b>{escape(word)}.</b> {escape(sentence)}.{why_html}{more}</div></div>"
    )


def _why(finding: Finding) -> str:
    """The question mark that explains what a warning speaks of."""
    term = glossary.REASONS.get(finding.reason)
    return "" if term is None else glossary.mark(term)


def counts_html(found: Sequence[Verdict]) -> str:
    """How many of several runs are red, amber and green."""
    levels = [one.level for one in found]
    parts = [
        f'<span class="rs-mark {level}">{SIGNS[level]}</span> {levels.count(level):,} {level}'
        for level in LEVELS
        if level in levels
    ]
    return f'<div class="rs-sub">Verdicts: {" · ".join(parts)}</div>'


def cell(found: Verdict) -> str:
    """The verdict in a cell of a table; the sign also where colours can't be told apart."""
    return f"{SIGNS[found.level]} {found.short}"
