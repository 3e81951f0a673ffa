"""A fit from measured windows (``tuning_windows.py``) and a model; calibration/fitted.py says what it is."""

from __future__ import annotations

import json
import shlex
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, replace
from pathlib import Path
from typing import Any, TypeVar

from routesparse.engine import paths
from routesparse.engine.calibrate.beside_dense import BesideDense
from routesparse.engine.calibrate.fisher import head_fisher
from routesparse.engine.calibrate.head_floors import head_curves, head_floors
from routesparse.engine.calibrate.prompts import Document
from routesparse.engine.calibrate.tuning_windows import Asked, Drawn, Measuring, draw_windows, header_of
from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.choose import measured_on
from routesparse.engine.calibration.fitted import Fitted, FittedWindow
from routesparse.engine.config import HeadFloors
from routesparse.engine.errors import CalibrationError, UnsupportedModelError
from routesparse.engine.models.load import LoadedModel
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.runtime.replay import rows_of

FISHER_TEXTS, FISHER_TOKENS = 6, 4_096
HEAD_TEXTS = 9  # whose heads' errors and areas are measured
DIGITS = 5
NEEDED = ("kl", "replayed", "entropy", "surprise", "area")
Item = TypeVar("Item")


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
    found = weighed(loaded, windows, split, seed, no_progress)
    paths.write_json(file, {"about": about, **asdict(found)})
    return found


def weighed(
    loaded: LoadedModel, windows: Sequence[Drawn], split: str, seed: int, progress: Progress
) -> Heads:
    """What some of the windows say of every head. Progress has the stage "heads"."""
    few, more = _some(windows, FISHER_TEXTS), _some(windows, HEAD_TEXTS)
    total = len(few) + len(more)
    texts = (one.window.token_ids[:FISHER_TOKENS] for one in _told(few, "heads", 0, total, progress))
    try:
        weights = head_fisher(loaded.model, texts, seed)
    except UnsupportedModelError:
        return Heads(None, None)
    asked = (one.text(split, seed) for one in _told(more, "heads", len(few), total, progress))
    curves = head_curves(BesideDense(loaded), asked)
    return Heads(_tuples(weights), None if curves is None else _tuples(head_floors(*curves, weights)))


def check_replayed(windows: Sequence[Drawn]) -> None:
    """Errors: CalibrationError for windows too short for a replay, before any is measured."""
    if any(rows_of(one.window.tokens - 1, 0) is None for one in windows):
        raise CalibrationError(
            f"windows of short texts have fewer than {fitted.LEAST_TOKENS:,} tokens; pass longer texts, or ask for more"
        )


def fit_kind(
    loaded: LoadedModel, documents: Sequence[Document], windows: int, tokens: int, progress: Progress
) -> Fitted:
    """One kind of text, measured by this process: a fit, or the model's own fit with this kind in it.

    A fit that is there keeps its prices, seed and floors by head, so nothing is weighed again; older windows of the
    kind go. documents: of one domain. Progress has the stages "profile" (where one is measured), "heads", "windows".
    Errors: CalibrationError for a fit of other tokens or of another version, those of ``draw_windows`` and of routing.
    """
    old, kind = fitted.of_model(loaded.revision), documents[0].domain
    prices, seed = (fitted.PRICES, 0) if old is None else (old.prices, old.seed)
    name = fitted.name_for(loaded.name) if old is None else old.name
    of = {one.name: f"{kind}/{one.name}" for one in documents}
    drawn = draw_windows(documents, of, tokens, windows, loaded.tokenizer, seed)
    check_replayed(drawn)
    words = ("routesparse", "fit", loaded.name, "--prompts", kind, "--windows", windows, "--tokens", tokens)
    heads = Heads(None, None) if old is None else Heads(old.weights, old.head_floors)
    asked = Asked(loaded.name, None, seed, "calibration", tokens, shlex.join(map(str, words)))
    asked = replace(asked, head_floors=heads.head_floors)
    header = header_of(asked, loaded)
    same = ("tokens", "library_hash", "stamp")
    if old is not None and any(getattr(old, one) != header[one] for one in same):
        raise CalibrationError(
            f"fit {name} of this model has windows of {old.tokens:,} tokens, prices {', '.join(map(str, prices))} and "
            f"pattern library {old.library_hash}; ask for as many tokens, or fit all kinds anew on the command line"
        )
    bench = BesideDense(loaded)
    bench.profiles = bench.prepared(Measuring.probes, progress)
    if old is None:
        heads = weighed(loaded, drawn, asked.split, seed, progress)
        header = header_of(replace(asked, head_floors=heads.head_floors), loaded)
    measuring = Measuring(bench, header, heads.head_floors, raises=True)
    rows: list[dict[str, Any]] = []
    for place, one in enumerate(drawn):
        at = place * len(prices), len(drawn) * len(prices)
        rows += measuring((one, _told(prices, "windows", *at, progress)))
    made = fitted_from(rows, [header], heads, name=name, command=asked.command)
    if old is None:
        return made
    return replace(
        made,
        windows=(*(one for one in old.windows if one.domain != kind), *made.windows),
        measured=(*old.measured, *made.measured),
        device=_both(old.device, made.device),
        dtype=_both(old.dtype, made.dtype),
    )


def _told(items: Iterable[Item], stage: str, done: int, total: int, progress: Progress) -> Iterator[Item]:
    """The items, each told when its turn comes, which may end the work."""
    for place, one in enumerate(items, done):
        progress(stage, place, total)
        yield one


def _both(old: str, new: str) -> str:
    return old if new in old.split(", ") else f"{old}, {new}"


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
        raise CalibrationError("these windows are too short to be replayed; measure longer ones")
    if not whole:
        raise CalibrationError("no window was measured at every price; try again")
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
