"""A fit from measured windows (``tuning_windows.py``) and a model; calibration/fitted.py says what it is."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.calibrate.beside_dense import BesideDense
from routesparse.engine.calibrate.fisher import head_fisher
from routesparse.engine.calibrate.head_floors import head_curves, head_floors
from routesparse.engine.calibrate.tuning_windows import Drawn
from routesparse.engine.calibration.choose import measured_on
from routesparse.engine.calibration.fitted import Fitted, FittedWindow
from routesparse.engine.config import HeadFloors
from routesparse.engine.errors import CalibrationError, UnsupportedModelError
from routesparse.engine.models.load import LoadedModel

FISHER_TEXTS, FISHER_TOKENS = 6, 4_096
HEAD_TEXTS = 9  # whose heads' errors and areas are measured
DIGITS = 5
NEEDED = ("kl", "replayed", "entropy", "surprise", "area")


@dataclass(frozen=True)
class Heads:
    """weights: tr F / D [L, H], None for a model whose attention is not weighed yet; head_floors: of RouterConfig."""

    weights: tuple[tuple[float, ...], ...] | None
    head_floors: HeadFloors | None


def heads_of(loaded: LoadedModel, windows: Sequence[Drawn], split: str, seed: int, file: Path) -> Heads:
    """What some of the windows say of every head; kept in a file, since the rows behind it go by its floors."""
    about = {"revision": loaded.revision, "split": split, "seed": seed, "windows": [w.key for w in windows]}
    about = json.loads(json.dumps(about))
    if file.exists() and (kept := json.loads(file.read_text())).pop("about") == about:
        return Heads(**{name: None if rows is None else _tuples(rows) for name, rows in kept.items()})
    texts = [one.window.token_ids[:FISHER_TOKENS] for one in _some(windows, FISHER_TEXTS)]
    try:
        weights = head_fisher(loaded.model, texts, seed)
    except UnsupportedModelError:
        found = Heads(None, None)
    else:
        curves = head_curves(BesideDense(loaded), [w.text(split, seed) for w in _some(windows, HEAD_TEXTS)])
        floors = None if curves is None else _tuples(head_floors(*curves, weights))
        found = Heads(_tuples(weights), floors)
    paths.write_json(file, {"about": about, **asdict(found)})
    return found


def _some(windows: Sequence[Drawn], count: int) -> Sequence[Drawn]:
    return windows[:: max(1, len(windows) // count)][:count]


def _tuples(rows: Iterable[Iterable[float]]) -> tuple[tuple[float, ...], ...]:
    return tuple(tuple(map(_rounded, row)) for row in rows)


def fitted_from(
    rows: Sequence[Mapping[str, Any]],
    headers: Sequence[Mapping[str, Any]],
    heads: Heads,
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
        weights=heads.weights,
        measured=tuple(dict.fromkeys(str(one["command"]) for one in headers)),
        command=command,
        head_floors=heads.head_floors,
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
