"""The output-error claim of a run, from its audited rows, beside the certificates that certify made of its prompt."""

from __future__ import annotations

import math
import shlex
from html import escape

import pandas as pd
import streamlit as st

from routesparse.app.shell import navigate
from routesparse.app.shell.scope import Scope
from routesparse.app.ui import elements, exports, glossary, numbers, states, tables
from routesparse.engine.export import certificate_words
from routesparse.engine.export.plain_text import visible
from routesparse.engine.models.files import DEMO, folders
from routesparse.engine.rounding import all_digits, at_most
from routesparse.engine.store import certificate_queries, frames, queries
from routesparse.engine.store.owner_view import OwnerView


def card(store: OwnerView, shown: Scope, coverage: pd.DataFrame, gaps: pd.Series) -> None:
    """One run's claim, where it was audited, and the certificates of its prompt; several runs have other prompts."""
    if coverage.empty:
        certificates(store, shown)
        return
    rows, full = int(coverage["audit_rows"].sum()), shown.run.audit_depth == "full"
    executed = coverage["executed_error"].max()
    kernel = "was not compared with them"
    if not numbers.is_missing(executed):
        kernel = (
            f"lies at most {at_most(float(executed), 2)} from them, relative to the values that a row reads"
        )
    told = claim(rows, full, shown.run.confidence, float(gaps["max_error"]))
    with elements.card("output-claim"):
        st.html(
            f'<div class="rs-h">Output-error claim{glossary.mark("output_claim")}</div><div class="rs-sub">'
            f'{escape(told)}</div><div class="rs-note">These are rows of the chosen plan as the audit rebuilt it; what '
            f"the kernel wrote {escape(kernel)}. A rare row may lose everything, and the answer is not looked at.</div>"
        )
    certificates(store, shown)


def certificates(store: OwnerView, shown: Scope) -> None:
    """The certificates that certify made of this run's prompt."""
    found = certificate_queries.of_same_prompt(store, shown.run.run_id)
    model = shown.run.model
    named = "" if model == DEMO else f" --model {shlex.quote(str(folders().get(model, model)))}"
    with elements.card("certificates"):
        st.html(
            '<div class="rs-h">Certificates of this prompt</div><div class="rs-note">certify makes the output-error '
            "claim of a function’s own output, kernel and number format included, of any attention on this prompt; of "
            f"ours: <code>{escape(states.here(_OWN + named))}</code></div>"
        )
        if found.empty:
            return
        st.html(_table(found))
        exports.chart_foot(
            f"certificates-{shown.name}",
            f"n = {numbers.several(len(found), 'certificate')} of this prompt and these weights, each from a pass of "
            "its own · ≤ and ≥: over all rows at its confidence · source: certificate and claim",
            found,
            "certificates-of-prompt",
        )


_OWN = f"{states.PROGRAM} certify --prompt FILE --method routesparse"


def claim(rows: int, all_rows: bool, confidence: float, largest: float) -> str:
    """The sentence. rows: audited of all sparse units, drawn independently; largest: their largest relative error."""
    if not math.isfinite(largest):
        return f"The error of one of the {rows:,} audited rows is no number: nothing is claimed."
    worst = at_most(largest, 3)
    if all_rows:
        return f"All {rows:,} body rows of the sparse heads were audited: none is off by more than {worst}."
    share = (1.0 - confidence) ** (1.0 / rows)
    sure = all_digits(confidence, percent=True).replace("%", " %")
    return (
        f"With {sure} confidence at least {certificate_words.lower(share, True)} of the sparse heads’ body rows, each "
        f"head and segment counting the same, are off by at most {worst}, relative to their dense output: the largest "
        f"error among {rows:,} random ones, rounded up."
    )


def _table(found: pd.DataFrame) -> str:
    lines = []
    for one in frames.rows(found):
        address = escape(navigate.address("trust", run=queries.label(str(one.run_id))))
        plan = escape(visible(str(one.function if numbers.is_missing(one.plan) else one.plan)))
        own = " (our router with this run’s settings)" if one.same_router else ""
        known = not numbers.is_missing(one.hit_rate_bound)
        lines.append(
            (
                f'<a href="{address}" target="_self"><bdi>{plan}</bdi></a>{own}',
                certificate_words.word(str(one.verdict), one.tolerance),
                certificate_words.upper(one.mean_error_bound),
                f"{one.largest_error:.3g}",
                certificate_words.lower(one.hit_rate_bound, True) if known else "–",
            )
        )
    heads = ("certifies", "verdict", "error ≤", "worst row", "largest key ≥")
    return tables.table(heads, lines, (0, 1))
