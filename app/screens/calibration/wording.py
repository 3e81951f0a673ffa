"""A calibration in words and tables: what it asks for, what it subtracts, what it was made from, how two differ."""

from __future__ import annotations

from collections.abc import Sequence
from html import escape
from typing import Any

import pandas as pd

from routesparse.app.ui import facts, numbers, tables
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.method.families import stamped_families

QUANTILES = ("0.9", "0.95", "0.99")
_NO_PRICE = "Runs with the policy priced do not use it: there the price decides."


def sentence(calibrations: Sequence[Calibration], confidence: float) -> str:
    """For a newcomer: what one calibration asks for, or what makes the second differ from the first."""
    first = calibrations[0]
    if len(calibrations) == 1:
        return f"{_asks(first)} {_claims(first, confidence)} {_made_from(first)}"
    second = calibrations[1]
    parts = [_compare_gates(first, second), _compare_claims(first, second, confidence)]
    parts.append(f"{_made_from(first)} {_made_from(second)} Neither speaks for prompts unlike its own.")
    return " ".join(part for part in parts if part)


def _asks(one: Calibration) -> str:
    if one.gate_threshold is None:
        return f"{_upper(one.name)} was made under the policy priced: it has no λ, the price decides what a head reads."
    return (
        f"With {one.name}, a head tries a sparse plan only if g ≥ {one.gate_threshold:.3f}: by the probe, the plan "
        f"must retain that share of the head’s attention. {_NO_PRICE}"
    )


def _claims(one: Calibration, confidence: float) -> str:
    delta = widest(one, confidence)
    share = f"{100 * confidence:g} of 100 selected heads"
    if delta is None:
        return f"It makes no conformal claim at this confidence: {_prompts(one)} are too few."
    return (
        f"From the measured g it subtracts {_amount(one, confidence)}; on prompts like its own, the result is a true "
        f"lower bound for {share}."
    )


def _compare_gates(first: Calibration, second: Calibration) -> str:
    if first.gate_threshold is None or second.gate_threshold is None:
        return f"{_asks(first)} {_asks(second)}"
    if abs(first.gate_threshold - second.gate_threshold) < 5e-4:
        return (
            f"Both try a sparse plan for a head only if g ≥ {first.gate_threshold:.3f}: by the probe, the plan must "
            f"retain that share of the head’s attention. {_NO_PRICE}"
        )
    strict, lax = (first, second) if first.gate_threshold > second.gate_threshold else (second, first)
    return (
        f"{_upper(strict.name)} is stricter: it asks for g ≥ {strict.gate_threshold:.3f}, {lax.name} for "
        f"{lax.gate_threshold:.3f}, before a head tries a sparse plan. On the same prompt it therefore reads "
        f"at least as many keys. {_NO_PRICE}"
    )


def _compare_claims(first: Calibration, second: Calibration, confidence: float) -> str:
    one, other = widest(first, confidence), widest(second, confidence)
    share = f"{100 * confidence:g} of 100 selected heads"
    if one is None or other is None:
        silent = [c for c, delta in ((first, one), (second, other)) if delta is None]
        names = " and ".join(f"{c.name} ({_prompts(c)})" for c in silent)
        return f"No conformal claim at this confidence from {names}: too few prompts."
    if abs(one - other) < 5e-4:
        return f"Both subtract δ = {one:.3f} from the measured g, which gives a true lower bound for {share}."
    careful, sure = (first, second) if one > other else (second, first)
    return (
        f"To get a true lower bound for {share}, {careful.name} subtracts {_amount(careful, confidence)}, {sure.name} "
        f"only {_amount(sure, confidence)}, from the measured g{_why(careful, sure)}."
    )


def _amount(one: Calibration, confidence: float) -> str:
    """delta, or the largest over the lengths where they differ."""
    deltas = (bucket.deltas.get(f"{confidence:g}") for bucket in one.buckets)
    known = {round(delta, 3) for delta in deltas if delta is not None}
    return f"{'up to ' if len(known) > 1 else ''}δ = {max(known):.3f}"


def _why(careful: Calibration, sure: Calibration) -> str:
    if careful.provenance.get("robust"):
        return f": {careful.name} takes the largest δ of its domains and so holds in each of them"
    if len(careful.parts) <= 1 and len(sure.parts) <= 1:
        return f": the probe is less reliable on {careful.domain}"
    return ""


def _made_from(one: Calibration) -> str:
    return (
        f"{_upper(one.name)} was made from {_prompts(one)} of {numbers.several(_documents(one), 'document')}."
    )


def widest(one: Calibration, confidence: float) -> float | None:
    """The largest delta_q over the length buckets; None where every bucket's is infinite."""
    known = [bucket.deltas.get(f"{confidence:g}") for bucket in one.buckets]
    return max((delta for delta in known if delta is not None), default=None)


def _prompts(one: Calibration) -> str:
    return numbers.several(sum(bucket.prompts for bucket in one.buckets), "window")


def _documents(one: Calibration) -> int:
    """Of fold B, which gives delta; of both where the folds were not recorded."""
    return len(one.folds["B"]["documents"]) if "B" in one.folds else len(one.documents)


def _upper(name: str) -> str:
    return name[:1].upper() + name[1:]


def facts_html(one: Calibration) -> str:
    """The figures of one calibration."""
    cost = one.cost_model
    return facts.lines_html(
        [
            (
                "gate threshold λ",
                "none: policy priced" if one.gate_threshold is None else f"{one.gate_threshold:.4f}",
                "gate_threshold",
            ),
            ("weight α of disagreement", f"{one.alpha:.3g}", "disagreement"),
            ("error predictor", "yes" if one.predictor else "none", "predictor"),
            ("domains", ", ".join(one.parts) or one.domain),
            ("model", f"{one.model} {one.model_revision[:8]}, {one.dtype}"),
            (
                "cost of a dense tile, in sparse tiles",
                numbers.NOT_MEASURED if cost is None else f"{cost.dense:.2f}, {cost.backend} kernel",
                "cost_model",
            ),
            (
                "pattern library",
                "as in this version" if stamped_families(one.library_hash) else "another: runs refuse it",
            ),
            ("made", str(one.provenance.get("created_at", numbers.NOT_MEASURED))[:16].replace("T", " ")),
        ]
    )


def delta_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """One row per calibration and bucket: lengths, K, documents and delta at each q (NULL: infinite)."""
    rows = []
    for one in calibrations:
        for bucket in one.buckets:
            rows.append(
                {
                    "calibration": one.name,
                    "min_tokens": bucket.min_tokens,
                    "max_tokens": bucket.max_tokens,
                    "windows": bucket.prompts,
                    "documents": bucket.documents,
                    "units": bucket.units,
                    **{f"delta_{q}": bucket.deltas.get(q) for q in QUANTILES},
                }
            )
    return pd.DataFrame(rows)


def infinite(rows: pd.DataFrame) -> list[str]:
    """Where one length's delta is infinite though another's is not: a line of the latter speaks for it alone."""
    told = []
    for q in QUANTILES:
        for name, part in rows.groupby("calibration", sort=False):
            absent = part[part[f"delta_{q}"].isna()]
            if 0 < len(absent) < len(part):
                lengths = ", ".join(f"{row.min_tokens:,}–{row.max_tokens:,}" for row in absent.itertuples())
                told.append(
                    f"{_upper(str(name))}: δ at q = {q} is infinite for {lengths} tokens: no claim there."
                )
    return told


def delta_html(rows: pd.DataFrame) -> str:
    """delta by bucket as a table; an infinite delta promises nothing."""
    head = (
        '<th class="l">calibration</th><th>tokens</th><th>windows K</th><th>documents</th><th>units</th>'
        + "".join(f"<th>δ, q = {float(q):.2f}</th>" for q in QUANTILES)
    )
    body = [
        f'<tr><td class="l">{escape(row["calibration"])}</td><td>{row["min_tokens"]:,}–{row["max_tokens"]:,}</td>'
        f"<td>{row['windows']:,}</td><td>{_count(row['documents'])}</td><td>{_count(row['units'])}</td>"
        + "".join(f"<td>{_delta(row[f'delta_{q}'])}</td>" for q in QUANTILES)
        + "</tr>"
        for row in rows.to_dict("records")
    ]
    return tables.framed(f"<tr>{head}</tr>{''.join(body)}")


def fold_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """One row per calibration, fold and document: its name, hash and windows; empty where none were recorded."""
    rows = [
        {"calibration": one.name, "fold": fold, **document}
        for one in calibrations
        for fold, part in one.folds.items()
        for document in part["documents"]
    ]
    return pd.DataFrame(rows, columns=["calibration", "fold", "name", "sha256", "prompts"])


def fold_html(rows: pd.DataFrame) -> str:
    """The documents of both folds, side by side per calibration."""
    body = []
    for (name, fold), part in rows.groupby(["calibration", "fold"], sort=False):
        use = "fits λ, α and e" if fold == "A" else "gives δ"
        listed = ", ".join(
            f"{escape(str(row['name']))} ({row['prompts']})" for row in part.head(12).to_dict("records")
        )
        more = f" and {len(part) - 12} more" if len(part) > 12 else ""
        body.append(
            f'<tr><td class="l">{escape(str(name))}</td><td class="l">{fold}, {use}</td><td>{len(part)}</td>'
            f'<td>{int(part["prompts"].sum()):,}</td><td class="l" style="white-space:normal">{listed}{more}</td></tr>'
        )
    head = (
        '<th class="l">calibration</th><th class="l">fold</th><th>documents</th><th>windows</th>'
        '<th class="l">document (windows)</th>'
    )
    return tables.framed(f"<tr>{head}</tr>{''.join(body)}")


def overlap_text(calibrations: Sequence[Calibration]) -> tuple[bool, str]:
    """Whether the folds are apart, and in words; documents are told apart by the hash of their text."""
    found = []
    for one in calibrations:
        both = set(one.overlap())
        names = {
            document["name"]
            for part in one.folds.values()
            for document in part["documents"]
            if document["sha256"] in both
        }
        if names:
            found.append(f"{one.name}: {', '.join(sorted(names))}")
    if found:
        return False, f"In both folds, so δ is too small: {'; '.join(found)}. Calibrate again."
    return (
        True,
        "No document is in both folds: δ was measured on documents that fitting λ, α and e did not see.",
    )


def _count(value: Any) -> str:
    return "–" if numbers.is_missing(value) else f"{int(value):,}"


def _delta(value: Any) -> str:
    return "infinite" if numbers.is_missing(value) else f"{value:.4f}"
