"""From measured losses to a price: Learn-then-Test with fixed-sequence testing (Angelopoulos et al., 2021).

Prices are tested from the dearest (the lowest) upwards, each one's claim "the mean loss is at most the limit" at the
full error 1 - q; the first that fails ends it, and of those that passed the one is chosen that read the least of the
causal area. The chance of choosing a price whose claim is false is at most 1 - q. Proof: one can have passed only if
the dearest of all prices with a false claim did, and its test errs with probability at most 1 - q; so which of those
that passed is chosen may depend on anything. The highest is not always the one that reads least: where so little is
kept that certificates fail, heads are given more again. This needs prices and windows that were fixed
before the losses were seen: trying again on more rows, or with other prices because these failed, is a second test, and
two tests may err with 2 (1 - q). Nothing is assumed about how the loss depends on
the price, nor about how the losses of one window at several prices depend on each other.

The loss of a window is the mean over its tokens: KL to dense; the share of changed next tokens; or what the text's own
log-likelihood loses, where a gain counts as 0. Of a question (questions.py) it is what the gold answer's log-likelihood
loses, in the mean over the answer's tokens; the answer runs dense behind the prompt. A loss counts up to a cap of CAP
times the limit, because no finite sample bounds the mean of a loss that may be arbitrarily large in a rare window. So
the claim is about E[min(loss, cap)]; the artifact tells the largest loss seen.

A test is a bound by betting (method/layer_certificate.py) on x = 1 - min(loss, cap) / cap, in [0, 1]. What it is about:

* unit "document", where a domain has at least LEAST_CLUSTERS clusters (documents, or projects whose pieces they are):
  x is a cluster's mean. If clusters are independent draws from the domain, the claim is about the domain. Questions
  always count by document: nobody drew those of one at random.
* unit "window", where it has fewer: the clusters are strata, and the windows of one are independent draws from it, by
  our own random generator (prompts.draw). The claim is about the mean over *these* clusters, with equal weights, and
  holds whatever they are. Nothing is claimed of another document; the check on test documents measures that.
  No bound could do more: if a share p of all documents had the worst loss, n good ones are seen with probability
  (1 - p)^n, so with 4 books p may be as large as .53 at confidence .95 and the mean as large as .53 cap.

Several domains: either the claim is about the mean over domains, each one bounded at error (1 - q) / D (union bound);
or, robust, about each by itself: the largest of the bounds, each at the full error (its claim errs at most 1 - q).
"""

from __future__ import annotations

import hashlib
import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

import numpy as np

from routesparse.engine.calibration.fitted import MIXED, Fitted
from routesparse.engine.calibration.tuned import MEASURES, Measure, Part, PriceResult, TunedPrice, Unit
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import CalibrationError, ConfigError, shortened
from routesparse.engine.method.layer_certificate import layer_lower_mass

CAP = 4.0
LEAST_CLUSTERS = 20
Row = Mapping[str, Any]


@dataclass(frozen=True)
class Target:
    """What a user asks for, such as kl=0.01, agreement=0.97 or, of questions, answer=0.05."""

    measure: Measure
    value: float

    @classmethod
    def parse(cls, text: str) -> Target:
        """Errors: ConfigError."""
        name, _, value = text.partition("=")
        try:
            number = float(value)
        except ValueError:
            number = math.nan
        measure = next((one for one in MEASURES if one == name), None)
        most = 1.0 if name == "agreement" else 1e3
        if measure is None or not 0 < number < most:
            raise ConfigError(
                f"target {text[:40]!r} is not understood; pass kl=0.01, nats=0.01 or answer=0.05 (nats a token), or "
                "agreement=0.97"
            )
        return cls(measure, number)

    @property
    def limit(self) -> float:
        """The largest mean loss that keeps it."""
        return 1.0 - self.value if self.measure == "agreement" else self.value

    def loss(self, row: Row) -> float:
        """Of one window; infinite where it could not be measured."""
        if "failed" in row:
            return math.inf
        if self.measure == "agreement":
            return 1.0 - float(row["agreement"])
        found = float(row["kl"]) if self.measure == "kl" else float(row["nats"]) - float(row["nats_dense"])
        # A KL of 0 may round to less.
        return max(0.0, found) if math.isfinite(found) else math.inf


@dataclass(frozen=True)
class Sample:
    """One domain's windows. losses [P, H, C]: of prices, strata and units; windows [P, W]; areas [P]."""

    part: Part
    losses: np.ndarray
    windows: np.ndarray
    areas: np.ndarray

    def bounds(self, cap: float, error: float) -> np.ndarray:
        """Upper bounds of the mean of min(loss, cap), float64 [P]. losses are capped already."""
        return cap * (1.0 - layer_lower_mass(1.0 - self.losses / cap, error))


def sample(rows: Iterable[Row], domain: str, prices: Sequence[float], target: Target) -> Sample:
    """What a domain's rows say at each price, from the windows that have a row at every price.

    Errors: CalibrationError where there are too few.
    """
    found: dict[tuple[str, int], dict[float, Row]] = {}
    texts: dict[tuple[str, int], Any] = {}
    for row in rows:
        if row["domain"] == domain and row["price"] in prices:
            key = row["cluster"], row["index"]
            seen = found.setdefault(key, {})
            if texts.setdefault(key, row.get("sha256")) != row.get("sha256"):
                raise CalibrationError(
                    f"window {row['index']} of {shortened(row['cluster'])} was measured on two texts; pass --prompts "
                    "with the one to choose for, or other --rows"
                )
            if "failed" not in row or row["price"] not in seen:
                seen[row["price"]] = row
    whole = {key: at for key, at in sorted(found.items()) if len(at) == len(prices)}
    clusters: dict[str, list[dict[float, Row]]] = {}
    for (cluster, _), at in whole.items():
        clusters.setdefault(cluster, []).append(at)
    by_document = len(clusters) >= LEAST_CLUSTERS or target.measure == "answer"
    unit: Unit = "document" if by_document else "window"
    fewest = min(map(len, clusters.values()), default=0)
    if unit == "window":
        # Strata of equal size; which windows are left out does not depend on what they lost.
        clusters = {name: windows[:fewest] for name, windows in clusters.items()}
    if not clusters or (unit == "window" and fewest < 2):
        raise CalibrationError(
            f"domain {domain!r} has {len(whole)} windows that were measured at every price; it needs at least 2 "
            "of each document; measure more, or name fewer prices"
        )
    if len(clusters) < 2 and target.measure == "answer":
        raise CalibrationError(
            f"the questions of domain {domain!r} are all of one document; pass questions about others too"
        )
    cap = CAP * target.limit
    table = {
        name: np.array([[target.loss(at[price]) for at in windows] for price in prices])
        for name, windows in clusters.items()
    }
    capped = [np.minimum(table[name], cap) for name in sorted(table, key=_shuffled)]
    if unit == "document":
        losses = np.stack([values.mean(1) for values in capped], axis=1)[:, None, :]
    else:
        losses = np.stack(capped, axis=1)
    areas = [
        [np.mean([at[p].get("area", 1.0) for at in windows]) for p in prices] for windows in clusters.values()
    ]
    kept = [at[prices[0]] for windows in clusters.values() for at in windows]
    part = Part(domain, unit, len(kept), len({row["document"] for row in kept}), len(clusters))
    return Sample(part, losses, np.concatenate(list(table.values()), axis=1), np.mean(areas, axis=0))


def _shuffled(name: str) -> str:
    """An order of clusters that has nothing to do with what they are."""
    return hashlib.sha256(name.encode()).hexdigest()


def kept_prices(bounds: np.ndarray, limit: float) -> np.ndarray:
    """Fixed-sequence testing: bounds [..., P], dearest price first -> bool [..., P], passed with every dearer one."""
    return np.cumprod(bounds <= limit, axis=-1).astype(bool)


def least_area(kept: np.ndarray, areas: np.ndarray) -> np.ndarray:
    """Of the prices that passed the one that reads least, of equal ones the highest.

    kept: bool [..., P]; areas: [P]; returns int64 [...], -1 for none.
    """
    back = np.where(kept, areas, np.inf)[..., ::-1].argmin(-1)
    return np.where(kept.any(-1), kept.shape[-1] - 1 - back, -1)


def check_kind(questions: bool, target: Target) -> None:
    """Errors: CalibrationError for a target that says nothing about texts, or about questions."""
    if questions and target.measure != "answer":
        raise CalibrationError(
            f"{target.measure}={target.value:g} is about texts, and these are questions; pass --target answer=0.05"
        )
    if not questions and target.measure == "answer":
        raise CalibrationError(
            "answer= is about gold answers, and these are texts; pass --prompts with a .jsonl file of questions, "
            "or --target nats="
        )


def choose(
    rows: Sequence[Row],
    header: Row,
    target: Target,
    confidence: float,
    *,
    name: str,
    domain: str,
    domains: Sequence[str],
    robust: bool,
    measured: Sequence[str],
    command: str,
) -> TunedPrice:
    """The price that reads least of those that keep the target.

    header: of the rows' files (tuning_windows.py); measured: commands.

    Errors: CalibrationError where no price does, or too little was measured.
    """
    mine = [row for row in rows if row["domain"] in domains]
    by_domain = [{row["price"] for row in mine if row["domain"] == one} for one in domains]
    prices = sorted(set.intersection(*by_domain)) if by_domain else []
    if not prices:
        raise CalibrationError(f"no price was measured on {', '.join(domains)}; measure some first")
    if any(row["split"] == "test" for row in mine):
        raise CalibrationError("these windows are of the test split; choose on the calibration split alone")
    for questions in {"answer_tokens" in row for row in mine}:
        check_kind(questions, target)
    samples = [sample(mine, one, prices, target) for one in domains]
    cap, error = CAP * target.limit, 1.0 - confidence
    bounds = np.stack([one.bounds(cap, error if robust else error / len(samples)) for one in samples])
    joined = bounds.max(0) if robust else bounds.mean(0)
    kept = kept_prices(joined, target.limit)
    if not kept[0]:
        raise CalibrationError(
            f"no price keeps {target.measure}={target.value:g}: at price {prices[0]:g}, the dearest that was measured, "
            f"the bound is {joined[0]:.4g} and the limit {target.limit:.4g}; pass a looser target, or lower prices or "
            "more documents at a higher --confidence, since every further try is a further test"
        )
    losses = np.stack([one.losses.mean((1, 2)) for one in samples])
    areas = np.mean([one.areas for one in samples], axis=0)
    tested = tuple(
        PriceResult(
            price=float(price),
            loss=float(losses[:, place].max() if robust else losses[:, place].mean()),
            bound=float(joined[place]),
            largest=float(min(max(one.windows[place].max() for one in samples), 1e3)),
            above=float(np.mean([(one.windows[place] > target.limit).mean() for one in samples])),
            area=float(areas[place]),
            kept=bool(kept[place]),
        )
        for place, price in enumerate(prices)
    )
    return TunedPrice(
        name=name,
        domain=domain,
        measure=target.measure,
        target=target.value,
        limit=target.limit,
        cap=cap,
        confidence=confidence,
        price=float(prices[int(least_area(kept, areas))]),
        robust=robust,
        tested=tested,
        parts=tuple(one.part for one in samples),
        **measured_on(header),
        documents=tuple(sorted({row["document_sha256"] for row in mine})),
        measured=tuple(dict.fromkeys(measured)),
        command=command,
    )


def measured_on(header: Row) -> dict[str, Any]:
    """What an artifact says of the rows that it is made of, by its fields. header: of their file."""
    same = {name: header[name] for name in ("tokens", "model", "dtype", "device", "library_hash", "seed")}
    more = {"model_revision": header["revision"], "stamp": dict(header["stamp"])}
    return same | more | {"commit": header["git_commit"]}


def price_of(fit: Fitted, kind: str, loss: float, confidence: float = 0.95) -> TunedPrice:
    """The price by which a fit keeps a mean KL of so many nats a token on one of its kinds of text, or on all.

    Errors: CalibrationError where no price that was measured does.
    """
    return choose(
        list(fit.rows()),
        fit.header(),
        Target("kl", loss),
        confidence,
        name=f"{kind}-kl-{loss:g}",
        domain=kind,
        domains=fit.domains if kind == MIXED else [kind],
        robust=False,
        measured=fit.measured,
        command=fit.command,
    )


@dataclass(frozen=True)
class Aim:
    """What a fit has for a loss target. found: None where no measured price keeps it, and the least is taken."""

    price: float
    found: TunedPrice | None
    says: str

    def applied(self, config: RouterConfig, own_segment: bool) -> RouterConfig:
        """The configuration at this price. own_segment: see ``TunedPrice.applied``."""
        if self.found is None:
            return replace(config, price=self.price)
        return self.found.applied(config, own_segment=own_segment)


def aimed(fit: Fitted, label: str | None, loss: float) -> Aim:
    """The price for prompts with this label."""
    kind = fit.kind_of(label)
    try:
        found = price_of(fit, kind, loss)
    except CalibrationError:
        least = min(fit.prices)
        told = f"no price that was measured keeps a loss of {loss:g} on {kind} texts with confidence 0.95; the least, "
        return Aim(least, None, f"{told}{least:g}, is used")
    return Aim(found.price, found, f"{found.name}: {found.says}")
