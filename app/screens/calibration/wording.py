"""A calibration in words and rows: what it asks for, what it subtracts, what it was made from."""

from __future__ import annotations

from collections.abc import Sequence

import pandas as pd

from routesparse.app.ui import elements, numbers
from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.method.families import stamped_families

QUANTILES = ("0.9", "0.95", "0.99")


def sentence(one: Calibration, confidence: float) -> str:
    """For a newcomer: what a calibration asks for, what it claims, and of whom it speaks."""
    windows = numbers.several(sum(bucket.prompts for bucket in one.buckets), "window")
    if one.gate_threshold is None:
        asks = "Made under the policy priced: it has no λ, the price decides what a head reads."
    else:
        asks = (
            f"A head tries a sparse plan only if g ≥ {one.gate_threshold:.3f}: by the probe, the plan must retain that "
            "share of its attention. Runs with the policy priced do not use it: there the price decides."
        )
    known = {one.deltas.get(f"{confidence:g}") for one in one.buckets} - {None}
    deltas = sorted({round(delta, 3) for delta in known if delta is not None})
    if not deltas:
        claims = f"It makes no conformal claim at this confidence: {windows} are too few."
    else:
        claims = (
            f"From the measured g it subtracts {'up to ' if len(deltas) > 1 else ''}δ = {deltas[-1]:.3f}; on "
            f"prompts like its own, and on no others, that is a true lower bound for {100 * confidence:g} of 100 "
            "selected heads."
        )
    if one.provenance.get("robust"):
        claims += " δ is the largest of its domains, so it holds in each of them."
    # Fold B gives delta; both folds where they were not recorded.
    documents = one.folds["B"]["documents"] if "B" in one.folds else one.documents
    return f"{asks} {claims} δ comes from {windows} of {numbers.several(len(documents), 'document')}."


def facts_html(one: Calibration) -> str:
    """The figures of one calibration."""
    cost, gate = one.cost_model, one.gate_threshold
    fits = stamped_families(one.library_hash)
    return elements.lines_html(
        [
            ("gate threshold λ", "none: policy priced" if gate is None else f"{gate:.4f}", "gate_threshold"),
            ("weight α of disagreement", f"{one.alpha:.3g}", "disagreement"),
            ("error predictor e", _fit(one), "predictor"),
            ("domains", ", ".join(one.parts) or one.domain),
            ("model", f"{one.model} {one.model_revision[:8]}, {one.dtype}"),
            (
                "cost of a dense tile, in sparse tiles",
                numbers.NOT_MEASURED if cost is None else f"{cost.dense:.2f}, {cost.backend} kernel",
                "cost_model",
            ),
            ("pattern library", "as in this version" if fits else "another: runs refuse it"),
            ("made", str(one.provenance.get("created_at", numbers.NOT_MEASURED))[:16].replace("T", " ")),
        ]
    )


def delta_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """One row per calibration and bucket: lengths, K, documents and delta at each q (NULL: infinite)."""
    rows = [
        {
            "calibration": one.name,
            "min_tokens": bucket.min_tokens,
            "max_tokens": bucket.max_tokens,
            "windows": bucket.prompts,
            "documents": bucket.documents,
            "units": bucket.units,
            **{f"delta_{q}": bucket.deltas.get(q) for q in QUANTILES},
        }
        for one in calibrations
        for bucket in one.buckets
    ]
    return pd.DataFrame(rows)


def delta_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """delta by bucket as a table; an infinite delta promises nothing."""
    cells = {
        "calibration": rows["calibration"],
        "tokens": [f"{row.min_tokens:,}–{row.max_tokens:,}" for row in rows.itertuples()],
        **{
            name: ["–" if numbers.is_missing(count) else f"{count:,.0f}" for count in rows[column]]
            for name, column in (("windows K", "windows"), ("documents", "documents"), ("units", "units"))
        },
        **{
            f"δ, q = {float(q):.2f}": [
                "infinite" if numbers.is_missing(delta) else f"{delta:.4f}" for delta in rows[f"delta_{q}"]
            ]
            for q in QUANTILES
        },
    }
    return pd.DataFrame(cells)


def fold_rows(calibrations: Sequence[Calibration]) -> pd.DataFrame:
    """One row per calibration, fold and document: its name, hash and windows; empty where none were recorded."""
    rows = [
        {"calibration": one.name, "fold": fold, **document}
        for one in calibrations
        for fold, part in one.folds.items()
        for document in part["documents"]
    ]
    return pd.DataFrame(rows, columns=["calibration", "fold", "name", "sha256", "prompts"])


def fold_cells(rows: pd.DataFrame) -> pd.DataFrame:
    """The documents of both folds, a row each fold."""
    cells = []
    for (name, fold), part in rows.groupby(["calibration", "fold"], sort=False):
        listed = ", ".join(f"{row['name']} ({row['prompts']})" for row in part.head(12).to_dict("records"))
        more = f" and {len(part) - 12} more" if len(part) > 12 else ""
        use = f"{fold}, {'fits λ, α and e' if fold == 'A' else 'gives δ'}"
        cells.append((name, use, listed + more, f"{len(part)}", f"{part['prompts'].sum():,}"))
    columns = ["calibration", "fold", "document (windows)", "documents", "windows"]
    return pd.DataFrame(cells, columns=columns)


def overlap(calibrations: Sequence[Calibration]) -> str:
    """The documents that both folds hold, by the hash of their text; "" where the folds are apart."""
    found = []
    for one in calibrations:
        both = set(one.overlap())
        documents = [document for part in one.folds.values() for document in part["documents"]]
        if names := sorted({document["name"] for document in documents if document["sha256"] in both}):
            found.append(f"{one.name}: {', '.join(names)}")
    return "; ".join(found)


def _fit(one: Calibration) -> str:
    """How well the error predictor was fitted, and on what."""
    if one.predictor is None:
        return "none: the risk leaves e out (β = 0)"
    found, names = (
        one.predictor.fit,
        {"r2": "R² {:.3f}", "prompts": "{:,.0f} windows", "candidates": "{:,.0f} candidates"},
    )
    return (
        ", ".join(name.format(found[key]) for key, name in names.items() if key in found)
        or "fit not recorded"
    )
