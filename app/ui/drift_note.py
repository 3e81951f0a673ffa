"""The drift alarm and a calibration that does not fit, beside every figure of the conformal claim that they void."""

from __future__ import annotations

from html import escape

import pandas as pd

from routesparse.app.ui import numbers
from routesparse.engine.rows import RunRow


def void(run: RunRow) -> str | None:
    """Why the conformal claim of this run is void; None where nothing speaks against it."""
    if run.drift_alarm:
        return "Drift alarm: ignore this"
    return "Calibration does not fit: ignore this" if run.calibration_mismatch else None


def html(run: RunRow) -> str:
    """The same as a short mark; nothing where there is nothing to say."""
    told = void(run)
    return "" if told is None else f' <em class="rs-void">{escape(told)}</em>'


def of_several(runs: pd.DataFrame) -> str:
    """For a chart over several runs: how many of them void the claim. runs: rows of queries.runs."""
    alarms = runs["drift_alarm"].fillna(False).astype(bool)
    count = int((alarms | runs["calibration_mismatch"].notna()).sum())
    if not count:
        return ""
    whose = "this run" if len(runs) == 1 else f"{count:,} of {numbers.several(len(runs), 'run')}"
    told = f"Drift alarm or unfitting calibration in {whose}: ignore the conformal claim there."
    return f'<div class="rs-note"><em class="rs-void">{told}</em></div>'
