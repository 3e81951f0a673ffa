"""The router on stored scores: what each head would have chosen under another calibration's lambda and delta_q.

A what-if without the model: candidates, their g and their predicted times are those of the stored run, so only the
router's gate and the conformal claim change. Under a calibration of the policy "priced" lambda is no number of its own:
a unit's is the g of its candidate at the price, so such calibrations differ in delta_q alone. Step 5 (certificates,
fallback) is not replayed: its rows are not kept.
"""

from __future__ import annotations

import math

import numpy as np
import pandas as pd

from routesparse.engine.calibration.artifact import Calibration
from routesparse.engine.errors import InputError
from routesparse.engine.method.certificate import conformal_lower_mass
from routesparse.engine.method.families import floor
from routesparse.engine.method.router import cheapest_admissible, gate_statistic, priced_threshold, risk

UNIT = ["batch_index", "layer", "head", "segment"]


class NoPriceError(InputError):
    """A calibration of the policy priced, on a run without a candidate at a price."""


def replay(
    candidates: pd.DataFrame, calibration: Calibration, tokens: int, confidence: float
) -> pd.DataFrame:
    """The choices of the calibration's policy without a time limit: one row per unit, columns as in the store.

    candidates: rows of compare_queries.candidates_of_run. ``conformal_lower_mass`` is NaN where delta is infinite, for
    dense units and for families that the calibration does not know; what only a run can measure (``lower_mass``,
    ``fallback``, ``audited_*``) is NULL.
    Errors: InputError where the run recorded no candidates, or not the same ones for every unit; NoPriceError.
    """
    width = candidates["candidate"].nunique()
    if not width or len(candidates) % width:
        raise InputError(
            "this run recorded no candidate scores, so nothing can be replayed; analyse the prompt again"
        )
    shape = (len(candidates) // width, width)

    def matrix(column: str) -> np.ndarray:
        return candidates[column].to_numpy(float).reshape(shape)

    g = gate_statistic(matrix("mass"), matrix("recent_mass"))
    threshold: float | np.ndarray | None = calibration.gate_threshold
    if threshold is None:
        threshold = priced_threshold(g, _priced(candidates["pattern"].to_list()[:width]))
    choice = cheapest_admissible(g, matrix("kernel_us"), threshold)
    rows = candidates.iloc[np.arange(shape[0]) * width + choice].reset_index(drop=True)
    chosen = g[np.arange(shape[0]), choice]
    delta = calibration.delta(tokens, confidence)
    covered = (rows["pattern"] != "dense") & rows["pattern"].map(calibration.covers)
    claim = conformal_lower_mass(chosen, delta) if math.isfinite(delta) else np.full(len(rows), np.nan)
    return rows[[*UNIT, "candidate", "pattern", "budget", "density", "disagreement", "kernel_us"]].assign(
        run_id=calibration.name,
        gate_statistic=chosen,
        risk=risk(chosen, rows["disagreement"].to_numpy(float), calibration.alpha),
        conformal_lower_mass=np.where(covered, claim, np.nan),
        lower_mass=np.nan,
        fallback=None,
        audited_mass=np.nan,
        audited_error=np.nan,
    )


def _priced(patterns: list[str]) -> int:
    """The place of the floor at the price among one unit's candidates, whose levels stand in order."""
    levels = [place for place, name in enumerate(patterns) if name == floor.NAME]
    if len(levels) <= floor.PRICED_LEVEL:
        raise NoPriceError(
            "this run recorded no candidate at a price, as its calibration's policy needs; analyse the prompt again"
        )
    return levels[floor.PRICED_LEVEL]
