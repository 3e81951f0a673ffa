"""A fit from measured windows (``tuning_windows.py``) and a model; calibration/fitted.py says what it is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from routesparse.engine.calibrate.fisher import head_fisher
from routesparse.engine.calibration.choose import measured_on
from routesparse.engine.calibration.fitted import Fitted, FittedWindow
from routesparse.engine.errors import CalibrationError, UnsupportedModelError
from routesparse.engine.models.load import LoadedModel

FISHER_TEXTS, FISHER_TOKENS = 6, 4_096
DIGITS = 5
NEEDED = ("kl", "replayed", "entropy", "surprise", "area")


def fisher_of(loaded: LoadedModel, texts: Sequence[Sequence[int]], seed: int) -> np.ndarray | None:
    """tr F / D [L, H] of the first tokens of texts; None for a model whose attention is not weighed yet."""
    try:
        return head_fisher(loaded.model, [ids[:FISHER_TOKENS] for ids in texts], seed)
    except UnsupportedModelError:
        return None


def fitted_from(
    rows: Sequence[Mapping[str, Any]],
    headers: Sequence[Mapping[str, Any]],
    weights: np.ndarray | None,
    *,
    name: str,
    command: str,
) -> Fitted:
    """rows, headers: of tuning_windows.py, of one model; windows that lack a price are left out.

    Errors: CalibrationError where nothing is left, and for rows without a replay.
    """
    prices = sorted({float(row["price"]) for row in rows})
    at: dict[tuple[Any, ...], dict[float, Mapping[str, Any]]] = {}
    for row in rows:
        if "failed" not in row:
            key = (row["domain"], row["cluster"], row["index"], row["sha256"])
            at.setdefault(key, {})[float(row["price"])] = row
    whole = [
        [found[price] for price in prices] for _, found in sorted(at.items()) if len(found) == len(prices)
    ]
    if any(name not in row for window in whole for row in window for name in NEEDED):
        raise CalibrationError("these windows are too short to be replayed; pass --tokens 1024 or more")
    if not whole:
        raise CalibrationError("no window was measured at every price; the same command tries again")
    if any(row["split"] == "test" for window in whole for row in window):
        raise CalibrationError("these windows are of the test split; fit on the calibration split alone")
    return Fitted(
        name=name,
        **measured_on(headers[0]),
        prices=tuple(prices),
        windows=tuple(map(_window, whole)),
        weights=None if weights is None else tuple(tuple(map(_rounded, row)) for row in weights),
        measured=tuple(dict.fromkeys(str(one["command"]) for one in headers)),
        command=command,
    )


def _window(rows: Sequence[Mapping[str, Any]]) -> FittedWindow:
    first = rows[0]

    def numbers(name: str) -> tuple[float, ...]:
        return tuple(_rounded(max(0.0, float(row[name]))) for row in rows)

    return FittedWindow(
        **{
            name: first[name]
            for name in ("domain", "document", "document_sha256", "cluster", "index", "sha256")
        },
        entropy=_rounded(first["entropy"]),
        surprise=_rounded(max(0.0, first["surprise"])),
        kl=numbers("kl"),
        replayed=numbers("replayed"),
        area=numbers("area"),
    )


def _rounded(value: float) -> float:
    return float(f"{float(value):.{DIGITS}g}")
