"""The three certificates of a unit side by side with the audited truth: what each promises, and what it does not."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from routesparse.app.ui import glossary, numbers
from routesparse.engine.rows import RunRow


def claims_html(choice: pd.Series, run: RunRow) -> str:
    """Four boxes; dense units read every key and need no certificate."""
    if choice["pattern"] == "dense":
        return '<div class="rs-sub">This unit is dense: it reads every key, so no certificate applies.</div>'
    confidence = f"{run.confidence:.0%}"
    none = "no calibration" if run.calibration is None else "no δ for this length"
    boxes = [
        _box(
            f"In-prompt certificate{glossary.mark('certificate')}",
            choice["lower_mass"],
            numbers.NOT_MEASURED,
            _verdict(choice["lower_mass"], run.tau),
            f"The body rows of this head retain at least this mass on average, with {confidence} confidence over the "
            "draw of the sampled rows. Says nothing about single rows.",
        ),
        _box(
            f"Conformal, head{glossary.mark('conformal')}",
            choice["conformal_lower_mass"],
            none,
            _verdict(choice["conformal_lower_mass"], run.tau),
            f"g − δ, with δ from calibration {run.calibration}: true for {confidence} of the selected units on prompts "
            f"like its own.{_true_gate(choice)}"
            if run.calibration
            else "Made only with a calibration for this model; without one, the in-prompt certificate decides alone.",
        ),
        _box(
            f"Row statement{glossary.mark('row_statement')}",
            choice["row_lower_mass"],
            numbers.NOT_MEASURED,
            "",
            f"A random body row retains at least this mass, with {confidence} confidence. It is not a mean and does "
            "not cover every row."
            f"{_true_rows(choice)}",
        ),
        _truth(choice, run),
    ]
    scope = f'<div class="rs-note">{escape(glossary.CERTIFICATE_SCOPE)}</div>'
    return f'<div class="rs-claims">{"".join(boxes)}</div>{scope}'


def _box(name: str, value: Any, missing: str, verdict: str, note: str, style: str = "") -> str:
    known = not numbers.is_missing(value)
    shown = f"<b>{numbers.mass(value)}</b>" if known else f'<b class="none">{escape(missing)}</b>'
    told = verdict if known else ""
    return f'<div class="{style}"><span>{name}</span>{shown}{told}<small>{escape(note)}</small></div>'


def _verdict(value: Any, tau: float) -> str:
    if numbers.is_missing(value):
        return ""
    return f"<em>≥ τ {tau:.2f}</em>" if value >= tau else f'<em class="bad">&lt; τ {tau:.2f}</em>'


def _true_gate(choice: pd.Series) -> str:
    """g*, the truth of the conformal claim: the recent rows are a census, the body is audited."""
    truth = choice["audited_gate"]
    if numbers.is_missing(truth) or numbers.is_missing(choice["conformal_lower_mass"]):
        return ""
    found = "holds" if truth >= choice["conformal_lower_mass"] else "fails"
    return f" Audited: g* is {numbers.mass(truth)}, so it {found}."


def _true_rows(choice: pd.Series) -> str:
    if numbers.is_missing(choice["row_covered"]):
        return ""
    return f" Audited: {numbers.share(choice['row_covered'])} of the rows do."


def _truth(choice: pd.Series, run: RunRow) -> str:
    if numbers.is_missing(choice["audit_rows"]):
        return _box(
            "Audited truth", None, "not audited", "", "Run again with audit “rows” to measure it.", "truth"
        )
    covered = choice["covered"]
    verdict = ""
    if not numbers.is_missing(covered):
        verdict = "<em>the bound holds</em>" if covered else '<em class="bad">below the bound</em>'
    return _box(
        "Audited truth",
        choice["audited_mass"],
        numbers.NOT_MEASURED,
        verdict,
        f"Mean over {_audited_rows(choice, run)}; the worst row retains "
        f"{numbers.mass(choice['audited_min_mass'])}. Output error {numbers.mass(choice['audited_error'], 4)}, worst "
        f"row {numbers.mass(choice['audited_max_error'], 4)} (bound {numbers.mass(choice['bound_tight'], 4)})."
        f"{_upstream(choice)}",
        "truth",
    )


def _audited_rows(choice: pd.Series, run: RunRow) -> str:
    count = numbers.count(choice["audit_rows"])
    if run.audit_depth == "full":
        return f"all {count} body rows"
    return f"{count} random rows that no other step has read"


def _upstream(choice: pd.Series) -> str:
    """Distance from the dense forward, which only the full audit has: errors of earlier layers are in it."""
    if numbers.is_missing(choice["forward_error"]):
        return ""
    return f" Against the dense forward, errors of earlier layers included: {numbers.mass(choice['forward_error'], 4)}."
