"""A loss target that a server keeps by itself: the price moves slowly, so that the mean loss stays at the target.

Every routed prefill has a predicted loss at the price p that it ran with (runtime/replay.py), and of one in N the true
one is measured. With f(p) the fit's mean loss at a price over all its windows, loss / f(p) tells how much harder a
prompt was than the fit's texts, whatever price it ran with. The level is the exponential mean of that over MEMORY
requests, and the next price is the one with f(price) * level = target: so there is no loop gain to tune, and prompts
that ran with an older price count rightly. Where that is a STEP away or more, the price moves by one, so that few
prices are in use (a GPU has graphs for each). One request counts at most CAP times the level, or 1.

A prediction is replayed nats * ratio * correction. ratio: the kind of text's mean true loss over its mean replayed nats
in the fit, at that price (Fitted.factor is of all prices, and a geometric mean lies below the mean that is kept).
correction: of what was measured, the kind's sum of true over predicted losses, in units of f, begun with PRIOR requests
of 1 and forgotten over CORRECTIONS of them: texts that the fit does not know have another ratio.
"""

from __future__ import annotations

import math
from dataclasses import dataclass, field, replace

import numpy as np

from routesparse.engine.calibration.fitted import FLOOR, MIXED, Fitted
from routesparse.engine.errors import CalibrationError
from routesparse.engine.schema import Count, Real, Text

MEMORY, FIRST = 25, 8  # requests: of means, and for how many the fit's own expectation counts at the start
STEP, CAP = 0.05, 4.0  # of log price; of the level
PRIOR, CORRECTIONS, WIDEST = 4.0, 32, 4.0  # measured requests, twice; the largest correction either way
MARGIN, PATIENCE = 1.2, 50  # alarms: the mean beyond so many targets, the price on a bound, for more requests

# Of a routed prefill, nats a token: what its replay saw, and the replay's mean entropy and surprise.
Replay = tuple[float, float, float]


@dataclass(frozen=True)
class State:
    """All that a keeper remembers."""

    price: Real
    mean: Real  # nats a token, of recent requests
    level: Real = 1.0  # mean of loss / what the fit expects at the price
    requests: Count = 0
    beyond: Count = 0  # requests in a row with the mean beyond MARGIN targets
    bounded: Count = 0  # requests in a row that wished for a price on a bound or beyond
    corrections: dict[Text, tuple[Real, Real]] = field(default_factory=dict)  # by kind: true, predicted

    @property
    def alarms(self) -> tuple[str, ...]:
        """What has lasted for more than PATIENCE requests: "beyond", "bounded"."""
        return tuple(name for name in ("beyond", "bounded") if getattr(self, name) > PATIENCE)


@dataclass(frozen=True)
class Kept:
    """One prefill, and the state behind it: a line of the log (keeping_log.py)."""

    time: Text
    request: Text
    model: Text
    revision: Text
    target: Real  # nats a token, as all losses
    kind: Text
    price: Real  # it ran with
    predicted: Real  # corrected
    measured: Real | None
    state: State


class Keeper:
    """Keeps one model at a target: ``state`` has the next prefill's price, ``seen`` is told what one lost."""

    def __init__(self, fit: Fitted, target: float, bounds: tuple[float, float], start: float | State) -> None:
        """target: nats a token. bounds: of the price. start: a price, such as the fit's for the target, or a state.

        Errors: CalibrationError for bounds that are none, or of which the fit says nothing.
        """
        low, high = bounds
        if not fit.prices[0] <= low <= high <= fit.prices[-1]:
            raise CalibrationError(
                f"no price between {low:g} and {high:g} can be chosen: the fit measured {fit.prices[0]:g} to "
                f"{fit.prices[-1]:g}; name bounds within, the lower one first"
            )
        self.fit, self.target, self.bounds = fit, target, bounds
        self._at = np.log(fit.prices)
        kinds = (*fit.domains, MIXED)
        means = {kind: np.mean([(one.kl, one.replayed) for one in fit.of(kind)], 0) for kind in kinds}
        logs = {kind: np.log(np.maximum(mean, FLOOR)) for kind, mean in means.items()}
        self._expected = np.maximum.accumulate(logs[MIXED][0])
        self._ratios = {kind: true - replayed for kind, (true, replayed) in logs.items()}
        state = start if isinstance(start, State) else State(price=start, mean=target)
        self.state = replace(state, price=min(max(state.price, low), high))

    def price_of(self, level: float) -> float:
        """Where the fit expects the target of texts of a level; an end of what it measured beyond that."""
        wanted = math.log(self.target / max(level, FLOOR))
        return math.exp(np.interp(wanted, self._expected, self._at))

    def predicts(self, price: float, replay: Replay) -> tuple[str, float, float]:
        """The kind of text, and the loss in nats a token without and with what was measured of that kind."""
        nats, *point = replay
        kind = self.fit.nearest(*point)
        raw = max(nats, 0.0) * math.exp(np.interp(math.log(price), self._at, self._ratios[kind]))
        true, told = self.state.corrections.get(kind, (PRIOR, PRIOR))
        return kind, raw, raw * min(max(true / told, 1 / WIDEST), WIDEST)

    def seen(
        self, time: str, request: str, price: float, replay: Replay, measured: float | None = None
    ) -> Kept:
        """Take in a prefill that ran with a price, and move the price. measured: its true loss, where it is known."""
        kind, raw, predicted = self.predicts(price, replay)
        state, unit = self.state, math.exp(np.interp(math.log(price), self._at, self._expected))
        true, told = state.corrections.get(kind, (PRIOR, PRIOR))
        loss = predicted if measured is None else measured
        # Never below what the fit expects: after texts that lose nothing the level could not rise again.
        share, most = 1 / min(state.requests + 1 + FIRST, MEMORY), max(CAP * state.level, 1.0) * unit
        level = state.level + share * (min(loss, most) / unit - state.level)
        mean = state.mean + share * (min(loss, most) - state.mean)
        price_next, on_bound = self._next(level)
        corrections = state.corrections
        if measured is not None:
            kept = 1 - 1 / CORRECTIONS
            sums = (kept * true + min(measured, most) / unit, kept * told + min(raw, most) / unit)
            corrections = {**corrections, kind: sums}
        self.state = State(
            price=price_next,
            mean=mean,
            level=level,
            requests=state.requests + 1,
            beyond=state.beyond + 1 if mean > MARGIN * self.target else 0,
            bounded=state.bounded + 1 if on_bound else 0,
            corrections=corrections,
        )
        about = (time, request, self.fit.model, self.fit.model_revision, self.target)
        return Kept(*about, kind, price, predicted, measured, self.state)

    def _next(self, level: float) -> tuple[float, bool]:
        """The next price, and whether the one that is wished for lies on a bound or beyond."""
        (low, high), price = self.bounds, self.state.price
        wish = min(max(self.price_of(level), low), high)
        step = math.log(wish / price)
        on_bound = wish in (low, high)
        if abs(step) >= STEP or on_bound:
            price = min(max(price * math.exp(min(max(step, -STEP), STEP)), low), high)
        return price, on_bound
