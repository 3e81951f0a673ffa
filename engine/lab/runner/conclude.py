"""H1 to H3 on an evaluation's predictions: which prompts and rows each test takes, fixed before the runs.

Strata are (suite, length, task). Ours is ``routesparse`` at the default price, fixed budgets are ``minference``,
uniform growth is ``routesparse_no_fallback``; of a rival's settings the one within 2 % of our total time is taken, else
the next one on both sides, interpolated (``stats/paired.py``). A prompt's time is the median prefill of its stratum
under the method: the first prompts compile kernels. It comes from the stage time (``timing.py``), or from the
predictions where one process made them. Where no setting makes the times equal:

    all faster  the slowest stands, if it reads all but 2 % of the area: more time could buy it nothing
    all slower  ours is given the rival's time instead: the rival stands at the setting where enlarging begins
                (``PUBLISHED``), and of our settings the one within 2 % of its time is taken, else the next ones on both
                sides, interpolated; where all of ours are faster, the slowest, if it reads all but 2 % of the area
    otherwise   not tested

The rival's fastest setting is never taken for being nearest: it has the smallest budget, which may hardly save time
but lose much, so that every starved setting that is added would raise our gain. "All slower" was "not tested" until
MInference was seen to take 1.6 to 2.9 times our time at every budget (seeds 29 and 31). The rule was written with those
tables in view, and before a prompt that it judges was run at another price of ours.

    H1         all prompts
    H2         MInference was searched on prose of min(longest length, 32,768) tokens; plain: prompts on prose of that
               length; domain: other prompts of it; length: prose of other lengths; both: the rest
    H3         all prompts, mean score and the worst tenth of the gold answers' log-likelihood

A stratum that lacks a setting that a test needs is left out; how many were stands with the verdict. Where the rows that
a test needs are missing, or several processes predicted at once, whose times hold each other's waiting, it is not
tested; Holm's correction still counts five tests. Unlike the scales of the rules in ``stats/hypotheses.py``, the
settings that bracket our time are found on these prompts.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np

from routesparse.engine.config import DEFAULT_PRICE
from routesparse.engine.stats import hypotheses
from routesparse.engine.stats.coverage import FEWEST_CLUSTERS
from routesparse.engine.stats.paired import RESAMPLES, Arm, Draws

OURS, FIXED, UNIFORM = "routesparse", "minference", "routesparse_no_fallback"
WITHIN = 0.02
# Where enlarging a rival's budgets begins: MInference's own, and the price of ours that they are grown from.
PUBLISHED = {FIXED: 1.0, UNIFORM: DEFAULT_PRICE}
SEARCH_TOKENS = 32_768  # MInference's search takes no longer prompts
# Tasks whose haystack is prose; "*": all of a suite's.
PROSE = {
    "ruler": ("niah_single_2", "niah_single_3", "niah_multikey_1", "niah_multivalue", "niah_multiquery"),
    "stories": ("*",),
    "infinitebench": ("longbook_sum_eng", "longbook_qa_eng", "longbook_choice_eng"),
}
Point = tuple[str, float, bool]  # method, setting, extras
Stratum = tuple[str, int, str]  # suite, length, task
DENSE: Point = ("dense", 1.0, True)


@dataclass(frozen=True)
class Seen:
    """One prompt by one method. value: its score, 0 to 1; likelihood: of the gold answer, in nats."""

    value: float
    likelihood: float
    prefill_ms: float
    cluster: Hashable
    area: float = math.nan  # share of the causal area that is read


@dataclass(frozen=True)
class Cell:
    """The prompts of one stratum by every method. plain_length: whether MInference was searched at this length."""

    stratum: Stratum
    plain_length: bool
    by_method: Mapping[Point, Mapping[str, Seen]]
    timed_alone: bool = True  # False: the times are those of several processes that waited for each other

    @property
    def plain_domain(self) -> bool:
        tasks = PROSE.get(self.stratum[0], ())
        return self.stratum[2] in tasks or "*" in tasks


class MissingRowsError(Exception):
    """What a test lacks, in words."""


@dataclass(frozen=True)
class _Arms:
    """One method at one setting, and the other's settings that bracket its time, on the prompts that all have."""

    scores: hypotheses.Contrast
    likelihoods: hypotheses.Contrast
    settings: tuple[Point, ...]  # the one whose time counts (ours, or a slower rival), then the others
    ratios: tuple[float, ...]  # the others' total times over the first one's
    unequal: (
        str | None
    )  # all of the others are faster: "faster", where they are the rival's, or "ours faster"
    strata: tuple[Stratum, ...]  # used
    dropped: int  # strata with predictions that lack one of the settings


def conclude(cells: Sequence[Cell], seed: int) -> list[dict[str, Any]]:
    """The five tests as plain values: estimates in points, of H3's second one in nats; ``why`` where not tested."""
    made: dict[str, Sequence[np.ndarray]] = {}
    about: dict[str, dict[str, Any]] = {}
    for name, (draw, chosen) in _tests(cells, seed).items():
        try:
            if not cells:
                raise MissingRowsError("no task that has scores was predicted")
            if not all(cell.timed_alone for cell in cells):
                raise MissingRowsError(
                    "several processes predicted at once, so that times can't be made equal; run --stage time alone, "
                    "or predict with --processes 1"
                )
            arms = [_arms(part, rival, seed) for part, rival in chosen]
            made[name] = draw(arms)
            about[name] = _about(arms)
        except MissingRowsError as error:
            about[name] = {"why": str(error)}
    none = np.zeros(1 + RESAMPLES)  # p = 1
    found = hypotheses.verdicts({name: made.get(name, (none,)) for name in hypotheses.TESTS})
    rows = []
    for name in hypotheses.TESTS:
        if name not in made:
            rows.append({"test": name, "verdict": "not tested", **about[name]})
            continue
        result = found[name]
        points, *nats = result.estimates
        estimates = [points.in_points(), *map(asdict, nats)]
        rows.append(
            {
                "test": name,
                "verdict": result.verdict,
                "p_holm": result.p,
                "estimates": estimates,
                **about[name],
            }
        )
    return rows


Parts = Sequence[tuple[Sequence[Cell], str]]
Drawn = Callable[[Sequence[_Arms]], Sequence[np.ndarray]]


def _tests(cells: Sequence[Cell], seed: int) -> dict[str, tuple[Drawn, Parts]]:
    def part(domain: bool, length: bool) -> tuple[Sequence[Cell], str]:
        return [c for c in cells if (c.plain_domain, c.plain_length) == (domain, length)], FIXED

    def gain(arms: Sequence[_Arms]) -> Sequence[np.ndarray]:
        return (arms[0].scores.gain(),)

    def shift(arms: Sequence[_Arms]) -> Sequence[np.ndarray]:
        return (hypotheses.shift_gain(arms[0].scores, arms[1].scores),)

    def fallback(arms: Sequence[_Arms]) -> Sequence[np.ndarray]:
        return hypotheses.fallback_gains(arms[0].scores, arms[0].likelihoods)

    plain = part(True, True)
    return {
        "H1": (gain, [(cells, FIXED)]),
        "H2 domain": (shift, [plain, part(False, True)]),
        "H2 length": (shift, [plain, part(True, False)]),
        "H2 both": (shift, [plain, part(False, False)]),
        "H3": (fallback, [(cells, UNIFORM)]),
    }


@dataclass(frozen=True)
class _Shared:
    """The prompts that some settings all have."""

    cells: Sequence[Cell]
    samples: Mapping[Stratum, Sequence[str]]
    dropped: int  # strata with predictions that lack one of the settings

    @classmethod
    def of(cls, cells: Sequence[Cell], wanted: Sequence[Point]) -> _Shared:
        """Errors: MissingRowsError where no prompt has all of them."""
        whole = [cell for cell in cells if all(point in cell.by_method for point in wanted)]
        samples = {cell.stratum: common for cell in whole if (common := _common(cell, wanted))}
        kept = [cell for cell in whole if cell.stratum in samples]
        if not kept:
            names = " and ".join(dict.fromkeys(f"every {one[0]}" for one in wanted if one != DENSE))
            raise MissingRowsError(
                f"no prompt has predictions of dense, {names}, each with a time; run --stage time"
            )
        return cls(kept, samples, sum(bool(cell.by_method) for cell in cells) - len(kept))

    def rows(self, cell: Cell, point: Point) -> list[Seen]:
        return [cell.by_method[point][one] for one in self.samples[cell.stratum]]

    def total(self, point: Point) -> float:
        """A method's milliseconds: of each stratum its median, as often as it has prompts."""
        times = [[row.prefill_ms for row in self.rows(cell, point)] for cell in self.cells]
        return sum(len(of_cell) * float(np.median(of_cell)) for of_cell in times)

    def ratios(self, points: Sequence[Point], to: Point) -> dict[Point, float]:
        """Total times over another method's."""
        return {point: self.total(point) / self.total(to) for point in points}

    def area(self, point: Point) -> float:
        return float(np.mean([row.area for cell in self.cells for row in self.rows(cell, point)]))

    def arm(self, point: Point, likelihood: bool) -> Arm:
        values, times = {}, {}
        for cell in self.cells:
            rows, dense = self.rows(cell, point), self.rows(cell, DENSE)
            values[_name(cell.stratum)] = np.array(
                [row.likelihood - base.likelihood for row, base in zip(rows, dense, strict=True)]
                if likelihood
                else [row.value for row in rows]
            )
            times[_name(cell.stratum)] = np.full(len(rows), np.median([row.prefill_ms for row in rows]))
        return Arm(values, times)

    def arms(
        self, first: Point, others: Sequence[Point], unequal: str | None, raised: bool, seed: int
    ) -> _Arms:
        """Of one setting and those that bracket its time. raised: the latter are ours."""
        clusters = {
            _name(cell.stratum): [row.cluster for row in self.rows(cell, first)] for cell in self.cells
        }
        draws = Draws(clusters, seed)

        def contrast(likelihood: bool) -> hypotheses.Contrast:
            bracket = [self.arm(point, likelihood) for point in others]
            return hypotheses.Contrast(
                draws, self.arm(first, likelihood), bracket, as_it_is=unequal is not None, raised=raised
            )

        return _Arms(
            contrast(False),
            contrast(True),
            (first, *others),
            tuple(self.ratios(others, first).values()),
            unequal,
            tuple(cell.stratum for cell in self.cells),
            self.dropped,
        )


def _arms(cells: Sequence[Cell], rival: str, seed: int) -> _Arms:
    """Errors: MissingRowsError."""
    if not cells:
        raise MissingRowsError(
            "no prompts of one side of the shift; run tasks on prose and others, and two lengths"
        )
    points = {point for cell in cells for point in cell.by_method}
    ours = _of(points, OURS)
    if not ours:
        raise MissingRowsError(f"no predictions of {OURS}; add --methods {OURS}={DEFAULT_PRICE:g}")
    mine = min(ours, key=lambda point: (point[1] != DEFAULT_PRICE, point[1]))
    rivals = _of(points, rival)
    if not rivals:
        raise MissingRowsError(f"no predictions of {rival}; add --methods {rival}")
    shared = _Shared.of(cells, (mine, *rivals, DENSE))
    ratios = shared.ratios(rivals, mine)
    if min(ratios.values()) > 1 + WITHIN:
        return _raised(cells, ours, rivals, ratios, seed)
    chosen, all_faster = _bracket(shared, ratios, rival, "ours")
    return shared.arms(mine, chosen, "faster" if all_faster else None, False, seed)


def _raised(
    cells: Sequence[Cell],
    ours: Sequence[Point],
    rivals: Sequence[Point],
    ratios: Mapping[Point, float],
    seed: int,
) -> _Arms:
    """Where the rival is always slower: ours in its time. Errors: MissingRowsError."""
    rival = rivals[0][0]
    slower = f"every setting of {rival} that ran takes longer than ours (setting: its time over ours; {_taken(ratios)})"
    standing = next((point for point in rivals if point[1] == PUBLISHED[rival]), None)
    if standing is None:
        raise MissingRowsError(
            f"{slower}; add --methods {rival}={PUBLISHED[rival]:g}, whose time ours is given"
        )
    try:
        shared = _Shared.of(cells, (*ours, standing, DENSE))
        chosen, all_faster = _bracket(shared, shared.ratios(ours, standing), OURS, f"{rival}'s")
    except MissingRowsError as error:
        raise MissingRowsError(f"{slower}; {error}") from None
    return shared.arms(standing, chosen, "ours faster" if all_faster else None, True, seed)


def _of(points: set[Point], method: str) -> list[Point]:
    """A method's settings; with what all our plans read, where it ran both with and without."""
    found = sorted(point for point in points if point[0] == method)
    return [point for point in found if point[2]] or found


def _common(cell: Cell, points: Sequence[Point]) -> list[str]:
    return sorted(set.intersection(*(set(cell.by_method[point]) for point in points)))


def _taken(ratios: Mapping[Point, float]) -> str:
    return ", ".join(f"{point[1]:g}: {ratio:.3f}" for point, ratio in ratios.items())


def _bracket(
    shared: _Shared, ratios: Mapping[Point, float], method: str, whose: str
) -> tuple[list[Point], bool]:
    """The setting within 2 % of a time, else the next faster and the next slower one, else one that is faster and
    stands as it is, since it reads all: then the second is True. ratios: total times over the one to be met.

    Errors: MissingRowsError.
    """
    nearest = min(ratios, key=lambda point: abs(ratios[point] - 1))
    if abs(ratios[nearest] - 1) <= WITHIN:
        return [nearest], False
    faster = [point for point in ratios if ratios[point] < 1]
    slower = [point for point in ratios if ratios[point] > 1]
    if faster and slower:
        return [
            max(faster, key=lambda point: ratios[point]),
            min(slower, key=lambda point: ratios[point]),
        ], False
    if faster and shared.area(nearest) >= 1 - WITHIN:
        return [nearest], True
    raise MissingRowsError(
        f"no settings of {method} on both sides of {whose} total time (setting: its time over it; {_taken(ratios)}); "
        f"run a {'slower' if faster else 'faster'} one"
    )


def _about(arms: Sequence[_Arms]) -> dict[str, Any]:
    """How many prompts and clusters stand behind a test, of which suites, and which settings."""
    unequal = next((arm.unequal for arm in arms if arm.unequal is not None), None)
    fewest = min(counts.shape[1] for arm in arms for counts in arm.scores.draws.counts.values())
    return {
        "n": sum(arm.scores.draws.n for arm in arms),
        "clusters": sum(arm.scores.draws.clusters for arm in arms),
        "few_clusters": fewest < FEWEST_CLUSTERS,
        "settings": [[f"{method}={setting:g}" for method, setting, _ in arm.settings] for arm in arms],
        "time_ratios": [list(arm.ratios) for arm in arms],
        **({} if unequal is None else {"unequal": unequal}),
        "suites": sorted({suite for arm in arms for suite, _, _ in arm.strata}),
        "strata": sum(len(arm.strata) for arm in arms),
        "dropped_strata": sum(arm.dropped for arm in arms),
    }


def _name(stratum: Stratum) -> str:
    return "/".join(map(str, stratum))
