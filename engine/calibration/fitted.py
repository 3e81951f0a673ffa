"""A fit: what one model loses at each price on texts of several kinds, and what a replay says of it beforehand.

``routesparse fit`` measures windows of documents that nothing else is judged on, dense and at every price: the true KL,
and the KL that the replay of a few rows sees (runtime/replay.py). Three things follow, each of them of this file alone:

* the factor: exp of the mean of log(true / replayed), by which a replay becomes a predicted loss;
* the bound: split conformal with the document as unit. A document's windows at all prices have equal parts of its
  weight 1 / (K + 1); the missing weight lies at infinity (hierarchical conformal prediction: Lee, Barber and Willett,
  "Distribution-free inference with hierarchical data", 2023). So a bound at .95 needs 19 documents, and holds for a
  window of a document like these, in the mean over such windows; it says nothing of other kinds of text;
* the loss at each price, from which ``calibration/choose.py`` takes the price of a target.

weights are tr F / D of every head (calibrate/fisher.py): how a run's loss is shared out among its heads. head_floors
(calibrate/head_floors.py) belong to the prices: a run that goes by the fit goes by them.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

import numpy as np

from routesparse.engine import paths
from routesparse.engine.calibration import folders
from routesparse.engine.calibration.checks import RoundedShare, check_stamp
from routesparse.engine.calibration.drift import ALARM_LEVEL, LEAST_SPREAD, SHRINKAGE, Rate
from routesparse.engine.config import HeadFloors, Price, RouterConfig
from routesparse.engine.errors import CalibrationError
from routesparse.engine.schema import (
    FILLED,
    Count,
    FieldError,
    Object,
    Positive,
    Text,
    ascending,
    check_length,
    checked,
    schema_of,
)

KIND, SCHEMA = "fit", 1
MIXED = "mixed"  # of all kinds together
STATED_FACTOR = 1.5  # without a fit; on three public models and kinds of text it was 1.2 to 1.6
LEAST_WINDOWS = 12  # of a kind, for an alarm
FLOOR = 1e-6  # nats: below it a loss is rounding
DEFAULT_LOSS = 0.01  # nats a token, in the mean over texts of a kind
PRICES = (0.06, 0.09, 0.12, 0.18, 0.25, 0.35, 0.5, 0.7)  # that are measured
LEAST_TOKENS = 1_025  # of a window: shorter ones are not replayed (runtime/replay.py)


@dataclass(frozen=True)
class Prediction:
    """nats a token; bound: None where the fit has too few documents for the confidence, or there is no fit."""

    nats: float
    bound: float | None


@dataclass(frozen=True)
class FittedWindow:
    """One window at every price. entropy and surprise: of the replay, nats, at the first price."""

    domain: Text
    document: Text
    document_sha256: Text
    cluster: Text
    index: Count
    sha256: Text
    entropy: Rate
    surprise: Rate
    kl: tuple[Rate, ...]  # true, nats a token
    replayed: tuple[Rate, ...]
    area: tuple[RoundedShare, ...]

    def log_ratios(self) -> np.ndarray:
        """log(true / replayed), float64 [P]."""
        true, replayed = (np.maximum(np.array(one, float), FLOOR) for one in (self.kl, self.replayed))
        return np.log(true / replayed)


@dataclass(frozen=True)
class Fitted:
    """The artifact; see the module."""

    name: Text
    model: Text
    model_revision: Text
    dtype: Text
    device: Text
    library_hash: Text
    stamp: Object
    tokens: Positive  # of a window
    seed: Count
    prices: Annotated[tuple[Price, ...], FILLED]  # ascending
    windows: Annotated[tuple[FittedWindow, ...], FILLED]
    weights: tuple[tuple[Rate, ...], ...] | None  # [L, H]
    measured: tuple[Text, ...]  # commands
    command: Text
    commit: Text | None
    head_floors: HeadFloors | None = None  # by which the windows were routed (RouterConfig)

    @property
    def domains(self) -> list[str]:
        """The kinds of text that were measured."""
        return sorted({window.domain for window in self.windows})

    def kind_of(self, label: str | None) -> str:
        """Which kind of text speaks for a prompt with this label."""
        return label if label in self.domains else MIXED

    def of(self, kind: str) -> list[FittedWindow]:
        """The windows of a kind, or of all together."""
        return [window for window in self.windows if kind in (MIXED, window.domain)]

    def predicted(self, replayed: float, kind: str, confidence: float) -> Prediction:
        """The loss of a run whose replay saw so many nats a token. kind: one of domains, or MIXED."""
        scores = self._scores(kind)
        factor = math.exp(float(np.mean([one.mean() for one in scores])))
        quantile = upper_quantile(scores, confidence)
        at_least = max(replayed, 0.0)
        return Prediction(at_least * factor, None if quantile is None else at_least * math.exp(quantile))

    def floored(self, config: RouterConfig) -> RouterConfig:
        """The configuration by which runs under the policy priced go: with this fit's floors, unless it has some."""
        if config.policy != "priced" or config.head_floors is not None:
            return config
        return dataclasses.replace(config, head_floors=self.head_floors)

    def speaks_of(self, config: RouterConfig) -> bool:
        """Whether a bound of this fit holds for runs of a configuration: its windows were routed so, at some price."""
        return config.policy == "priced" and config.head_floors == self.head_floors

    def factor(self, kind: str) -> float:
        """By which a replay is multiplied."""
        return self.predicted(1.0, kind, 0.5).nats

    def held(self, fitted_on: str, used_on: str, confidence: float) -> float | None:
        """The share of a kind's windows, over all prices, whose true loss lies within the bound by another kind's."""
        bound = self.predicted(1.0, fitted_on, confidence).bound
        if bound is None:
            return None
        return float(np.mean([one.log_ratios() <= math.log(bound) + 1e-12 for one in self.of(used_on)]))

    def summary(self) -> list[dict[str, Any]]:
        """A row for each kind of text, then for all together; the bound is at .95, of one replayed nat."""
        return [
            {
                "kind": kind,
                "documents": len({(one.domain, one.document) for one in self.of(kind)}),
                "windows": len(self.of(kind)),
                "kl": dict(
                    zip(self.prices, np.mean([one.kl for one in self.of(kind)], 0).tolist(), strict=True)
                ),
                "factor": self.factor(kind),
                "bound": self.predicted(1.0, kind, 0.95).bound,
            }
            for kind in [*self.domains, MIXED]
        ]

    def nearest(self, entropy: float, surprise: float) -> str:
        """The kind of text whose windows a replay's mean entropy and surprise lie nearest to; see ``is_unlike``.

        A fit of all kinds together is held too seldom by the kinds that vary most. MIXED where a kind has few windows.
        """
        points = self._points(MIXED)
        if min(map(len, points.values())) < LEAST_WINDOWS:
            return MIXED
        point = _point(entropy, surprise)
        return min(self.domains, key=lambda kind: _nearest(point, {kind: points[kind]}))

    def is_unlike(self, entropy: float, surprise: float, kind: str) -> bool:
        """Whether a replay's mean entropy and surprise lie outside what the fit saw of a kind of text.

        Mahalanobis distance of their logarithms to the nearest kind, conformal among the windows' own distances with
        each left out; True for p <= ALARM_LEVEL (calibration/drift.py).
        """
        points = self._points(kind)
        if min(map(len, points.values())) < LEAST_WINDOWS:
            return False
        own = _nearest(_point(entropy, surprise), points)
        known = [
            _nearest(points[name][at], points | {name: np.delete(points[name], at, 0)})
            for name in points
            for at in range(len(points[name]))
        ]
        return (1 + sum(one >= own for one in known)) / (len(known) + 1) <= ALARM_LEVEL + 1e-3

    def head_shares(self, lost: np.ndarray) -> np.ndarray | None:
        """What part of a run's loss each head has, [L, H], from what its output lost; None without weights.

        lost: mean of ||output - exact output||^2, [L, H]. All zero where nothing was lost.
        """
        if self.weights is None or lost.shape != np.shape(self.weights):
            return None
        weighted = np.array(self.weights) * lost
        return weighted / max(float(weighted.sum()), 1e-300)

    def rows(self) -> Iterator[dict[str, Any]]:
        """As ``calibration/choose.py`` reads measured windows."""
        names = ("domain", "document", "document_sha256", "cluster", "index", "sha256")
        for window in self.windows:
            about = {name: getattr(window, name) for name in names}
            for price, kl, area in zip(self.prices, window.kl, window.area, strict=True):
                yield about | {"split": "calibration", "price": price, "kl": kl, "area": area}

    def header(self) -> dict[str, Any]:
        """As ``calibration/choose.py`` reads where rows come from."""
        about = {name: getattr(self, name) for name in ("tokens", "model", "dtype", "device", "library_hash")}
        more = {"revision": self.model_revision, "stamp": self.stamp, "seed": self.seed}
        return about | more | {"git_commit": self.commit}

    def save(self, path: Path) -> Path:
        """Write the file, replacing it whole."""
        return paths.write_json(path, {"schema": SCHEMA, "kind": KIND, **dataclasses.asdict(self)})

    def _points(self, kind: str) -> dict[str, np.ndarray]:
        """By kind of text, of each window what an alarm looks at [W, 2]."""
        windows = self.of(kind)
        return {
            name: np.array([_point(one.entropy, one.surprise) for one in windows if one.domain == name])
            for name in {one.domain for one in windows}
        }

    def _scores(self, kind: str) -> list[np.ndarray]:
        """Log ratios of each document, an array each."""
        found: dict[str, list[np.ndarray]] = {}
        for window in self.of(kind):
            found.setdefault(f"{window.domain}/{window.cluster}", []).append(window.log_ratios())
        return [np.concatenate(found[name]) for name in sorted(found)]


def _point(entropy: float, surprise: float) -> np.ndarray:
    return np.log(np.maximum([entropy, surprise], 1e-3))


def _nearest(point: np.ndarray, kinds: dict[str, np.ndarray]) -> float:
    """The least Mahalanobis distance to a kind's points [W, 2]; covariances shrink towards their diagonal."""
    found = []
    for points in kinds.values():
        spread = np.cov(points.T) + np.eye(2) * LEAST_SPREAD**2
        spread = (1 - SHRINKAGE) * spread + SHRINKAGE * np.diag(np.diag(spread))
        off = point - points.mean(0)
        found.append(float(off @ np.linalg.solve(spread, off)))
    return math.sqrt(min(found))


def upper_quantile(groups: list[np.ndarray], confidence: float) -> float | None:
    """The least t with sum over groups of 1/(K + 1) times the share of scores <= t at least the confidence.

    None where all K groups together weigh less than it.
    """
    values = np.concatenate(groups)
    weights = np.concatenate([np.full(len(one), 1.0 / len(one)) for one in groups]) / (len(groups) + 1)
    order = np.argsort(values, kind="stable")
    reached = np.cumsum(weights[order]) >= confidence - 1e-12
    return float(values[order][int(reached.argmax())]) if reached.any() else None


def unfitted(replayed: float) -> Prediction:
    """Of a model without a fit: by a stated factor, and no bound."""
    return Prediction(max(replayed, 0.0) * STATED_FACTOR, None)


def own_folder() -> Path:
    """Where the fits of this machine go, or of all that share its queue."""
    return paths.workplace() / "fits"


def name_for(model: str) -> str:
    """What a model's fit is called, after its folder, file or hub id."""
    return "".join(c if c.isalnum() or c in "-_" else "-" for c in Path(model).name)


def known() -> list[str]:
    """The names of the bundled fits and of those made here."""
    return folders.names(_folders())


def load(name: str) -> Fitted:
    """One by its name, or by its path ending in .json. Errors: CalibrationError."""
    found = folders.read("fit", "fit", name, _folders(), _from_dict)
    if found is None:
        raise CalibrationError(f"no fit {name[:80]!r}; known ones: {', '.join(known()) or 'none'}")
    return found


def of_model(revision: str) -> Fitted | None:
    """The fit of a model's weights: one made here before a bundled one. Errors: CalibrationError of a damaged file."""
    for folder in _folders():
        for path in sorted(folder.glob("*.json")):
            found = load(str(path))
            if found.model_revision == revision:
                return found
    return None


def needed(revision: str, name: str, loss: float) -> Fitted:
    """The fit of a model's weights for a loss that was asked for. Errors: CalibrationError where there is none."""
    if (found := of_model(revision)) is None:
        raise CalibrationError(
            f"{name} is not fitted, so no price is known for a loss of {loss:g}; run `routesparse fit {name}`, or "
            "name a price"
        )
    return found


def _folders() -> tuple[Path, ...]:
    return own_folder(), paths.DATA / "fits"


def _from_dict(values: Any) -> Fitted:
    """Errors: FieldError for the first value outside its meaning."""
    if (schema := schema_of(values)) != SCHEMA:
        raise FieldError("schema", schema, f"{SCHEMA}, which this version reads")
    if (kind := values.pop("kind", None)) != KIND:
        raise FieldError("kind", kind, KIND)
    found = checked(Fitted, values)
    check_stamp(found.stamp, "stamp")
    ascending(found.prices, "prices")
    for place, window in enumerate(found.windows):
        for name in ("kl", "replayed", "area"):
            check_length(getattr(window, name), len(found.prices), f"windows[{place}].{name}")
    if MIXED in found.domains:
        raise FieldError("windows.domain", MIXED, "the name of one kind of text")
    if found.weights is not None:
        for place, row in enumerate(found.weights):
            check_length(row, len(found.weights[0]), f"weights[{place}]")
    for place, row in enumerate(found.head_floors or ()):
        check_length(row, len((found.head_floors or ())[0]), f"head_floors[{place}]")
    return found
