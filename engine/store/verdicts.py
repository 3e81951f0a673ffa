"""The verdicts on stored runs, by the rules of engine/verdict.py."""

from __future__ import annotations

from dataclasses import fields
from typing import Any

import pandas as pd

from routesparse.engine.store import queries
from routesparse.engine.store.owner_view import OwnerView
from routesparse.engine.verdict import Facts, Verdict, verdict

_COUNTS = ("uncertified_units", "uncertified_layers", "violations", "same_tokens", "continued_tokens")


def of_rows(runs: pd.DataFrame) -> list[Verdict]:
    """One verdict for each row of queries.runs."""
    if runs.empty:  # it may have no columns either
        return []
    told = runs[[field.name for field in fields(Facts)]]
    known = told.notna().to_dict("records")
    return [
        verdict(Facts(**_plain(row, there)))
        for row, there in zip(told.to_dict("records"), known, strict=True)
    ]


def _plain(row: dict[Any, Any], there: dict[Any, bool]) -> dict[Any, Any]:
    """What is not measured as None; counts that a missing one made floats as whole numbers again."""
    return {
        name: None if not there[name] else int(value) if name in _COUNTS else value
        for name, value in row.items()
    }


def of_run(store: OwnerView, run_id: str) -> Verdict | None:
    """The verdict on one stored run; None for one that is not stored."""
    found = store.made(
        "verdict", [], lambda: of_rows(queries.runs(store, queries.RunFilter(run_ids=(run_id,)))), of=[run_id]
    )
    return found[0] if found else None


def loss_bounds(runs: pd.DataFrame) -> pd.Series:
    """Bounds of predicted losses that have coverage, as ``RunRow.loss_bounded``, NaN for the others. runs: of
    queries.runs."""
    alarmed = runs["loss_alarm"].fillna(False).astype(bool)
    return runs["loss_bound"].astype(float).where(runs["loss_fit"].notna() & ~alarmed)
