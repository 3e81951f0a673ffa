"""The three certificates of a unit side by side with the audited truth: what each promises, and what it does not."""

from __future__ import annotations

from html import escape
from typing import Any

import pandas as pd

from routesparse.app.ui import drift_note, glossary, numbers
from routesparse.engine.rows import RunRow


def claims_html(choice: pd.Series, run: RunRow, layer: pd.Series | None) -> str:
    """Four boxes, and one for the layer where the policy certifies it; dense units need no certificate of their own.

    layer: its row of queries.layers.
    """
    of_layer = [] if run.tau_layer is None or layer is None else [_layer(layer, run)]
    if choice["pattern"] == "dense":
        told = '<div class="rs-sub">This unit is dense: it reads every key, so no certificate applies.</div>'
        return told + (f'<div class="rs-claims rs-three">{of_layer[0]}</div>' if of_layer else "")
    confidence = numbers.share(run.confidence, 0)
    none = "no calibration" if run.calibration is None else "no δ for this length"
    floor = "" if run.tau_layer is None else " τ head is a safety floor, not a statement of quality."
    boxes = [
        *of_layer,
        _box(
            f"In-prompt certificate{', head' if of_layer else ''}{glossary.mark('certificate')}",
            choice["lower_mass"],
            numbers.NOT_MEASURED,
            _verdict(choice["lower_mass"], run.tau, "τ head" if of_layer else "τ"),
            f"The body rows of this head retain at least this mass on average, with {confidence} confidence over the "
            f"draw of the sampled rows. Says nothing about single rows.{floor}",
        ),
        _box(
            f"Conformal, head{glossary.mark('conformal')}",
            choice["conformal_lower_mass"],
            none,
            # tau_head would make any bound look good.
            drift_note.html(run) or ("" if of_layer else _verdict(choice["conformal_lower_mass"], run.tau)),
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
    columns = " rs-three" if of_layer else ""
    return f'<div class="rs-claims{columns}">{"".join(boxes)}</div>{scope}'


def _layer(layer: pd.Series, run: RunRow) -> str:
    """The certificate of the unit's layer."""
    raised = 0 if numbers.is_missing(layer["raised"]) else int(layer["raised"])
    climbed = f" Its heads climbed {numbers.several(raised, 'level')} until it did." if raised else ""
    in_each = " in each segment; shown is the least of these" if run.segments > 1 else ""
    verdict = _verdict(layer["lower_mass"], float(run.tau_layer or 0.0), "τ layer")
    return _box(
        f"Layer {layer['layer']}{glossary.mark('layer_certificate')}",
        layer["lower_mass"],
        "not certified" if layer["layer_uncertified"] else "all dense",
        verdict,
        "All heads of this layer together retain at least this mass on average, with "
        f"{numbers.share(run.confidence, 0)} confidence{in_each}. One head may lose more.{climbed}",
    )


def _box(name: str, value: Any, missing: str, verdict: str, note: str, style: str = "") -> str:
    """style "truth": a measured mean, which is no bound to be rounded down."""
    known = not numbers.is_missing(value)
    printed = numbers.mass if style == "truth" else numbers.bound
    shown = f"<b>{printed(value)}</b>" if known else f'<b class="none">{escape(missing)}</b>'
    told = verdict if known else ""
    return f'<div class="{style}"><span>{name}</span>{shown}{told}<small>{escape(note)}</small></div>'


def _verdict(value: Any, tau: float, name: str = "τ") -> str:
    if numbers.is_missing(value):
        return ""
    return (
        f"<em>≥ {name} {numbers.threshold(tau)}</em>"
        if value >= tau
        else f'<em class="bad">&lt; {name} {numbers.threshold(tau)}</em>'
    )


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
        missed = choice["lower_mass"] - choice["audited_mass"]
        verdict = (
            "<em>the bound holds</em>"
            if covered
            else f'<em class="bad">{numbers.small(missed)} below the bound</em>'
        )
    return _box(
        "Audited truth",
        choice["audited_mass"],
        numbers.NOT_MEASURED,
        verdict,
        f"Mean over {_audited_rows(choice, run)}; the worst row retains "
        f"{numbers.mass(choice['audited_min_mass'])}. Output error {numbers.mass(choice['audited_error'], 4)}, worst "
        f"row {numbers.mass(choice['audited_max_error'], 4)} (bound {numbers.mass(choice['bound_tight'], 4)})."
        f"{_upstream(choice)}{_chance(covered, run)}",
        "truth",
    )


def _chance(covered: Any, run: RunRow) -> str:
    """Why one missed bound is no alarm: the run's verdict counts them."""
    if numbers.is_missing(covered) or covered:
        return ""
    told = numbers.may_miss(run.confidence)
    return f" {told[0].upper()}{told[1:]}; Audit says how many of this run’s are."


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
