"""Two methods on the same prompts: how they differ, and how sure that is.

The bootstrap resamples what is independent: clusters of prompts (a document, a project), within each stratum (a task),
the same clusters for every method. Mean over strata of the means over a stratum's prompts, so that each task weighs
the same. Percentile intervals of B = 10,000 draws with a fixed seed. Draw 0 is the sample itself.

    drawn = Draws({"vt": clusters_of_vt, "fwe": clusters_of_fwe}, seed=0)
    found = difference(drawn, {"vt": (routed, dense), ...})
"""

from __future__ import annotations

import math
from collections.abc import Hashable, Mapping, Sequence
from dataclasses import dataclass

import numpy as np

RESAMPLES = 10_000
LEVEL = 0.95
FEWEST_DISCORDANT = 10  # below it, counts and Newcombe's interval say more than a bootstrap
WORST_SHARE = 0.1

Values = Mapping[str, Sequence[float] | np.ndarray]  # one number per prompt, by stratum


@dataclass(frozen=True)
class Interval:
    """An estimate with its 95 % interval, and the two-sided p of "it is 0"."""

    value: float
    low: float
    high: float
    p: float

    def in_points(self) -> dict[str, float]:
        """Of scores of 0 to 1: value and interval in points, p as it is."""
        return {"value": 100 * self.value, "low": 100 * self.low, "high": 100 * self.high, "p": self.p}


@dataclass(frozen=True)
class Difference:
    """other - base over paired prompts. harmed, gained: prompts that score lower, higher. newcombe: of 0/1 scores."""

    mean: Interval
    n: int
    clusters: int
    harmed: int
    gained: int
    newcombe: tuple[float, float] | None

    @property
    def few(self) -> bool:
        """Whether counts should be read in place of the bootstrap's interval."""
        return self.harmed + self.gained < FEWEST_DISCORDANT


class Draws:
    """Which clusters each resample holds, by stratum; the same object serves all methods and measures."""

    def __init__(
        self, clusters: Mapping[str, Sequence[Hashable]], seed: int = 0, resamples: int = RESAMPLES
    ) -> None:
        if not clusters or not all(len(names) for names in clusters.values()):
            raise ValueError("every stratum needs at least one prompt")
        rng = np.random.default_rng(seed)
        self.places: dict[str, np.ndarray] = {}  # int64 [n], the cluster of each prompt
        self.counts: dict[str, np.ndarray] = {}  # float64 [1 + B, clusters], how often each is drawn
        for name, labels in clusters.items():
            known = {label: place for place, label in enumerate(dict.fromkeys(labels))}
            self.places[name] = np.array([known[label] for label in labels])
            size = len(known)
            drawn = rng.multinomial(size, np.full(size, 1 / size), size=resamples)
            self.counts[name] = np.vstack([np.ones(size), drawn])

    @property
    def n(self) -> int:
        """Prompts of all strata."""
        return sum(map(len, self.places.values()))

    @property
    def clusters(self) -> int:
        """Clusters of all strata."""
        return sum(counts.shape[1] for counts in self.counts.values())

    def means(self, values: Values) -> np.ndarray:
        """Mean over strata of the weighted means over prompts: [1 + B]."""
        return np.mean([self.stratum_means(name, values[name]) for name in self.places], axis=0)

    def stratum_means(self, name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Means over one stratum's prompts, [1 + B]. Errors: ValueError for a wrong number of values."""
        sums = self.sums(name, values)
        return sums / self.sums(name, np.ones(len(self.places[name])))

    def sums(self, name: str, values: Sequence[float] | np.ndarray) -> np.ndarray:
        """Sums over one stratum's prompts, [1 + B]."""
        place, found = self.places[name], np.asarray(values, dtype=np.float64)
        if found.shape != place.shape:
            raise ValueError(f"{name} has {len(place)} prompts, but {found.shape} values came")
        counts = self.counts[name]
        return counts @ np.bincount(place, weights=found, minlength=counts.shape[1])

    def totals(self, values: Values) -> np.ndarray:
        """Sums over all prompts, [1 + B]."""
        return np.sum([self.sums(name, values[name]) for name in self.places], axis=0)

    def worst_means(self, values: Values, share: float = WORST_SHARE) -> np.ndarray:
        """Mean of the lowest ``share`` of the prompts' values, found inside each resample: [1 + B].

        Strata are pooled and weigh the same; of the prompt at the edge of the share only a part counts.
        """
        pooled = np.concatenate([np.asarray(values[name], dtype=np.float64) for name in self.places])
        order = pooled.argsort(kind="stable")
        weights = []
        for name, place in self.places.items():
            drawn = self.counts[name][:, place]
            weights.append(drawn / (drawn.sum(1, keepdims=True) * len(self.places)))
        ranked = np.concatenate(weights, axis=1)[:, order]
        before = ranked.cumsum(1) - ranked
        kept = np.clip(share - before, 0, ranked)
        return (kept * pooled[order]).sum(1) / kept.sum(1)


def interval(draws: np.ndarray, level: float = LEVEL) -> Interval:
    """Percentile interval of draws behind the first, which is the estimate; p counts draws on the far side of 0."""
    value, others = float(draws[0]), draws[1:]
    low, high = np.quantile(others, [(1 - level) / 2, (1 + level) / 2])
    tail = min((others <= 0).sum(), (others >= 0).sum()) + 1
    return Interval(value, float(low), float(high), min(1.0, 2 * float(tail) / (len(others) + 1)))


def difference(draws: Draws, other: Values, base: Values) -> Difference:
    """other - base, paired prompt by prompt."""
    changes = {name: np.subtract(other[name], base[name]) for name in draws.places}
    flat = np.concatenate(list(changes.values()))
    pooled = [np.concatenate([np.asarray(v[name], float) for name in draws.places]) for v in (other, base)]
    binary = all(np.isin(values, (0, 1)).all() for values in pooled)
    harmed, gained = int((flat < 0).sum()), int((flat > 0).sum())
    return Difference(
        interval(draws.means(changes)),
        draws.n,
        draws.clusters,
        harmed,
        gained,
        newcombe(*_cells(*pooled)) if binary else None,
    )


def _cells(other: np.ndarray, base: np.ndarray) -> tuple[int, int, int, int]:
    """Both right, only the other, only the base, neither."""
    return (
        int(((other == 1) & (base == 1)).sum()),
        int(((other == 1) & (base == 0)).sum()),
        int(((other == 0) & (base == 1)).sum()),
        int(((other == 0) & (base == 0)).sum()),
    )


def newcombe(both: int, only_other: int, only_base: int, neither: int) -> tuple[float, float]:
    """95 % interval of the difference of two paired proportions, other - base (Newcombe 1998, method 10).

    Wilson intervals of both, joined with the correlation of the pairs. It treats prompts as independent.
    """
    n = both + only_other + only_base + neither
    p, q = (both + only_other) / n, (both + only_base) / n
    (low_p, high_p), (low_q, high_q) = wilson(p, n), wilson(q, n)
    product = (both + only_other) * (only_base + neither) * (both + only_base) * (only_other + neither)
    spread = both * neither - only_other * only_base
    if product == 0:
        phi = 0.0
    elif spread > 0:
        phi = max(spread - n / 2, 0) / math.sqrt(product)
    else:
        phi = spread / math.sqrt(product)

    def reach(a: float, b: float) -> float:
        return math.sqrt(max(a * a - 2 * phi * a * b + b * b, 0.0))

    middle = p - q
    return middle - reach(p - low_p, high_q - q), middle + reach(high_p - p, q - low_q)


def wilson(share: float, n: int) -> tuple[float, float]:
    """The 95 % score interval of a share of n (Wilson 1927)."""
    z = 1.959963984540054
    middle = share + z * z / (2 * n)
    half = z * math.sqrt(share * (1 - share) / n + z * z / (4 * n * n))
    return (middle - half) / (1 + z * z / n), (middle + half) / (1 + z * z / n)


def holm(p_values: Mapping[str, float]) -> dict[str, float]:
    """Adjusted p-values (Holm 1979): reject where one is at most the level of the whole family."""
    ranked = sorted(p_values.items(), key=lambda item: item[1])
    adjusted, largest = {}, 0.0
    for place, (name, p) in enumerate(ranked):
        largest = max(largest, min(1.0, (len(ranked) - place) * p))
        adjusted[name] = largest
    return {name: adjusted[name] for name in p_values}


def perplexity_ratio(draws: Draws, other: Values, base: Values, units: Values) -> Interval:
    """Ratio of corpus perplexities, other / base: exp of the difference of nats a unit, books resampled.

    other, base: nats of each book; units: its tokens or words. The p-value is of "the ratio is 1".
    """
    change = draws.totals({name: np.subtract(other[name], base[name]) for name in draws.places})
    found = interval(change / draws.totals(units))
    return Interval(math.exp(found.value), math.exp(found.low), math.exp(found.high), found.p)
