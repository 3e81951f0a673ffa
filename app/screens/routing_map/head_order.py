"""Which lens of the map tells its heads apart best, and the order in which heads stand."""

from __future__ import annotations

import numpy as np
import pandas as pd

from routesparse.app.unit.shapes import COLUMNS
from routesparse.engine.method import shape

# Lenses that a map may open with, what ties go to first.
OPENING = {
    "shape": "shape",
    "loss_nats": "predicted loss",
    "audited_error": "audited error",
    "density": "density",
    "pattern": "family",
}
ORDERS = {"layer": "By layer", "shape": "By shape", "loss": "Most lost first"}
_BINS = 5


def opening(choices: pd.DataFrame) -> tuple[str, str]:
    """The lens that tells most on this run, and a sentence that says so."""
    kinds = {lens: kinds_of(choices, lens) for lens in OPENING}
    known = {lens: count for lens, count in kinds.items() if count is not None}
    best = max(known, key=lambda lens: round(known[lens], 1))
    return best, f"Opens with {OPENING[best]}: it tells these heads apart best."


def kinds_of(choices: pd.DataFrame, lens: str) -> float | None:
    """How many groups of equal size tell as much, 2^entropy: of families, of values in five bins of equal width, or
    of shapes, each share in five bins. None where less than half of the heads were measured."""
    if lens == "pattern":
        groups = choices[["pattern"]]
    else:
        values = choices[list(COLUMNS) if lens == "shape" else [lens]].astype(float)
        values = values[np.isfinite(values).all(axis=1)]
        if 2 * len(values) < len(choices) or values.empty:
            return None
        low, high = (0.0, 1.0) if lens == "shape" else (values.min().min(), values.max().max())
        groups = ((values - low) / ((high - low) or 1.0) * _BINS).clip(upper=_BINS - 1).astype(int)
    part = groups.value_counts(normalize=True).to_numpy()
    return float(2 ** -(part * np.log2(part)).sum())


def lost(choices: pd.DataFrame) -> str | None:
    """The figure that says which head loses most: its part of the predicted loss, else its audited error."""
    return next((name for name in ("loss_nats", "audited_error") if choices[name].notna().any()), None)


def ordered(choices: pd.DataFrame, order: str) -> list[tuple[str, list[int]]]:
    """Groups of heads with their names, each a list of row numbers of ``choices``: by dominant shape, the purest first,
    or one group by what is lost, the most first; what was not measured comes last."""
    rows = choices.reset_index(drop=True)
    if order == "loss":
        name = lost(rows)
        found = rows if name is None else rows.sort_values(name, ascending=False, kind="stable")
        return [("", found.index.tolist())]
    groups = []
    for kind in (*shape.KINDS, None):
        here = rows[rows["shape"].isna() if kind is None else rows["shape"] == kind]
        column = f"{kind}_share" if kind in shape.PARTS else "density"
        if len(here):
            here = here.sort_values(column, ascending=False, kind="stable")
            groups.append((kind or "not measured", here.index.tolist()))
    return groups
