"""The routing map's margin: a layer's certificate, its measured and predicted time against T_l, its fallbacks."""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.app.ui import numbers
from routesparse.engine.store import frames


def times(rows: pd.DataFrame, choices: pd.DataFrame, tau_layer: float | None = None) -> dict[str, Any]:
    """Per layer milliseconds measured, planned and allowed; the axis they share; the hover's lines.

    rows: the layers, over all segments; choices: the units drawn beside them, of which ``fallen`` fell back.
    With tau_layer also the layer's ``certificate``: its text, and whether it ran uncertified.
    """
    fallen = choices.loc[choices["fallback"].isin(("dense", "expand")), "layer"].value_counts()
    parts = ("probe_us", "index_us", "route_us", "kernel_us")
    measured = sum((rows[part] for part in parts), pd.Series(0.0, rows.index)) / 1000
    planned, limit = rows["planned_us"] / 1000, rows["limit_us"].astype(float) / 1000
    known = [*measured.dropna(), *planned.dropna(), *limit.dropna()]
    longest = max(known, default=1.0) or 1.0
    step = _round_step(longest)
    return {
        "longest": longest * 1.02,
        "ticks": [[step * i, f"{step * i:,g}"] for i in range(int(longest / step) + 1)],
        "rows": [
            {
                "layer": int(row.layer),
                "measured_ms": _drawn(m),
                "planned_ms": _drawn(row.planned_us / 1000),
                "limit_ms": _drawn(row.limit_us / 1000),
                "fallen": int(fallen.get(row.layer, 0)),
                "certificate": None if tau_layer is None else _certificate(row),
                "tip": "\n".join([*_hover(row, float(m)), *_certified(row, tau_layer)]),
            }
            for row, m in zip(frames.rows(rows), measured, strict=True)
        ],
    }


def _drawn(ms: float) -> float | None:
    """Where a time stands on the axis, which begins at 0; None where there is none."""
    return None if numbers.is_missing(ms) else round(max(0.0, float(ms)), 4)


def _certificate(row: Any) -> dict[str, Any]:
    """What stands beside the layer's row: mass and climbed levels."""
    if numbers.is_missing(row.lower_mass):
        return {"text": "none" if row.layer_uncertified else "–", "bad": bool(row.layer_uncertified)}
    climbed = 0 if numbers.is_missing(row.raised) else int(row.raised)
    text = numbers.bound(row.lower_mass).lstrip("0") if row.lower_mass < 1 else "1"
    return {"text": text + (f" ↑{climbed}" if climbed else ""), "bad": bool(row.layer_uncertified)}


def _certified(row: Any, tau_layer: float | None) -> list[str]:
    """The layer's certificate in the hover."""
    if tau_layer is None:
        return []
    climbed = 0 if numbers.is_missing(row.raised) else int(row.raised)
    if numbers.is_missing(row.lower_mass):
        lines = ["no certificate" if row.layer_uncertified else "all heads dense: no certificate needed"]
    else:
        lines = [
            f"certified mean mass {numbers.bound(row.lower_mass)} · τ layer {numbers.threshold(tau_layer)}"
        ]
    if climbed:
        lines.append(f"raised {numbers.several(climbed, 'level')} by its certificate")
    return [*lines, "the layer ran uncertified"] if row.layer_uncertified else lines


def _hover(row: Any, measured_ms: float) -> list[str]:
    limit = "none" if numbers.is_missing(row.limit_us) else numbers.micros(row.limit_us)
    lines = [
        f"layer {row.layer}",
        f"measured {numbers.millis(measured_ms)}: kernel {numbers.micros(row.kernel_us)}, "
        f"probe {numbers.micros(row.probe_us)},",
        f"index {numbers.micros(row.index_us)}, routing {numbers.micros(row.route_us)}",
        f"predicted {numbers.micros(row.planned_us)} · Tℓ {limit}",
        f"dense, predicted {numbers.micros(row.dense_us)}",
    ]
    if not numbers.is_missing(row.units):
        lines.append(
            f"all segments: {int(row.dense_fallback)} of {int(row.units)} units dense by fallback, "
            f"{int(row.expanded)} expanded"
        )
        if row.uncertified:
            lines.append(numbers.uncertified(row.uncertified, row.units))
    return lines


def _round_step(longest: float) -> float:
    """A tick distance of 1, 2 or 5 times a power of ten that gives two to four ticks."""
    power = 10.0 ** np.floor(np.log10(max(longest, 1e-9)))
    return float(next(s * power for s in (0.2, 0.5, 1.0, 2.0, 5.0) if longest / (s * power) <= 3.2))
