"""Tuned prices on windows of test documents: what they lose, whether the target is kept, what they save."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from routesparse.engine.calibrate.choose import Target, sample
from routesparse.engine.calibration.tuned import MEASURES, TunedPrice
from routesparse.engine.results.shift import Goal, Price, Use

Row = Mapping[str, Any]


def by_target(chosen: Sequence[TunedPrice]) -> list[list[TunedPrice]]:
    """Those of one measure, target and confidence together, in the order of MEASURES."""
    lots: dict[tuple[int, float, float], list[TunedPrice]] = {}
    for one in chosen:
        lots.setdefault((MEASURES.index(one.measure), one.target, one.confidence), []).append(one)
    return [lot for _, lot in sorted(lots.items())]


def used(chosen: Sequence[TunedPrice], rows: Sequence[Row]) -> Goal:
    """Prices of one target on every domain of ``rows``, the cheapest last, robust ones at the end.

    saved: of the area that the strictest of them reads on the same windows. Each bound is at the full error.
    """
    first = chosen[0]
    target = Target(first.measure, first.target)
    strictest = min(one.price for one in chosen)
    domains = list(dict.fromkeys(row["domain"] for row in rows))
    made = []
    for one in sorted(chosen, key=lambda one: (one.robust, one.price, one.name)):
        prices = sorted({strictest, one.price})
        own = tuple(part.domain for part in one.parts)
        uses = []
        for domain in domains:
            found = sample(rows, domain, prices, target)
            area = float(found.areas[-1])
            uses.append(
                Use(
                    domain,
                    domain in own,
                    found.part.windows,
                    found.part.clusters,
                    float(found.losses[-1].mean()),
                    float(found.bounds(one.cap, 1 - one.confidence)[-1]),
                    area,
                    1 - area / float(found.areas[0]),
                )
            )
        made.append(Price(one.name, one.price, own, one.robust, tuple(uses)))
    return Goal(first.measure, first.limit, first.goal, first.confidence, tuple(made))
