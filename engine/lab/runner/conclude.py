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

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.config import DEFAULT_PRICE
from routesparse.engine.lab.runner.collected import POINT
from routesparse.engine.stats import hypotheses
from routesparse.engine.stats.clusters import FEWEST_CLUSTERS
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
STRATUM = ["suite", "length", "task"]
Point = tuple[str, float, bool]  # of POINT
DENSE: Point = ("dense", 1.0, True)


class MissingRowsError(Exception):
    """What a test lacks, in words."""


def conclude(prompts: pd.DataFrame, seed: int) -> list[dict[str, Any]]:
    """The five tests as plain values: estimates in points, of H3's second one in nats; ``why`` where not tested.

    prompts: a row for each prompt and method, with STRATUM, POINT, ``sample_id``, ``value`` (its score, 0 to 1),
    ``likelihood`` (of the gold answer, in nats), ``prefill_ms`` (NaN: no time that counts), ``cluster``, ``area`` (the
    share of the causal area that is read), ``plain_length`` (MInference was searched at this length) and
    ``timed_alone`` (False: the times are those of several processes that waited for each other).
    """
    prompts = _placed(prompts)
    made: dict[str, Sequence[np.ndarray]] = {}
    about: dict[str, dict[str, Any]] = {}
    for name, (draw, rival, parts) in _tests(prompts).items():
        try:
            if prompts.empty:
                raise MissingRowsError("no task that has scores was predicted")
            if not prompts["timed_alone"].all():
                raise MissingRowsError(
                    "several processes predicted at once, so that times can't be made equal; run --stage time alone, "
                    "or predict with --processes 1"
                )
            arms = [_arms(part, rival, seed) for part in parts]
            made[name] = draw(arms)
            about[name] = _about(arms)
        except MissingRowsError as error:
            about[name] = {"why": str(error)}
    none = np.zeros(1 + RESAMPLES)  # p = 1
    found = hypotheses.verdicts({name: made.get(name, (none,)) for name in hypotheses.TESTS})
    rows = []
    for name, result in found.items():
        told: dict[str, Any] = {"test": name, "verdict": "not tested"}
        if name in made:
            points, *nats = result.estimates
            told |= {"verdict": result.verdict, "p_holm": result.p}
            told["estimates"] = [points.in_points(), *map(asdict, nats)]
        rows.append(told | about[name])
    return rows


def _placed(prompts: pd.DataFrame) -> pd.DataFrame:
    """Indexed by the stratum's number, in order, and the sample; ``plain_domain``: its haystack is prose."""
    domains = zip(prompts["suite"], prompts["task"], strict=True)
    of = prompts.assign(
        stratum=prompts.groupby(STRATUM, sort=False, observed=True).ngroup(),
        plain_domain=[bool({task, "*"} & {*PROSE.get(suite, ())}) for suite, task in domains],
    )
    return of.set_index(["stratum", "sample_id"]).sort_index(kind="stable")


Drawn = Callable[[Sequence["_Arms"]], Sequence[np.ndarray]]


def _tests(prompts: pd.DataFrame) -> dict[str, tuple[Drawn, str, Sequence[pd.DataFrame]]]:
    """Of each test what it draws from its arms, whose rival, and on which sets of prompts."""

    def part(domain: bool, length: bool) -> pd.DataFrame:
        return prompts[(prompts["plain_domain"] == domain) & (prompts["plain_length"] == length)]

    def gain(arms: Sequence[_Arms]) -> Sequence[np.ndarray]:
        return (arms[0].scores.gain(),)

    def shift(arms: Sequence[_Arms]) -> Sequence[np.ndarray]:
        return (hypotheses.shift_gain(arms[0].scores, arms[1].scores),)

    def fallback(arms: Sequence[_Arms]) -> Sequence[np.ndarray]:
        return hypotheses.fallback_gains(arms[0].scores, arms[0].likelihoods)

    plain = part(True, True)
    return {
        "H1": (gain, FIXED, [prompts]),
        "H2 domain": (shift, FIXED, [plain, part(False, True)]),
        "H2 length": (shift, FIXED, [plain, part(True, False)]),
        "H2 both": (shift, FIXED, [plain, part(False, False)]),
        "H3": (fallback, UNIFORM, [prompts]),
    }


@dataclass(frozen=True)
class _Arms:
    """One method at one setting, and the other's settings that bracket its time, on the prompts that all have.

    unequal: all of the others are faster: "faster", where they are the rival's, or "ours faster".
    """

    scores: hypotheses.Contrast
    likelihoods: hypotheses.Contrast
    settings: tuple[Point, ...]  # the one whose time counts (ours, or a slower rival), then the others
    ratios: tuple[float, ...]  # the others' total times over the first one's
    unequal: str | None
    suites: frozenset[str]
    dropped: int  # strata with predictions that lack one of the settings


@dataclass(frozen=True)
class _Shared:
    """The prompts that some settings all have, by setting; all frames have one index."""

    of: Mapping[Point, pd.DataFrame]
    dropped: int  # strata with predictions that lack one of the settings

    @classmethod
    def among(cls, prompts: pd.DataFrame, wanted: Sequence[Point]) -> _Shared:
        """Errors: MissingRowsError where no prompt has all of them."""
        timed = prompts.dropna(subset=["prefill_ms"]).groupby(POINT)
        mine = {point: rows for point, rows in timed if point in wanted}
        common = functools.reduce(
            pd.Index.intersection, (rows.index for rows in mine.values()), prompts.index
        )
        if len(mine) < len(wanted) or common.empty:
            names = " and ".join(dict.fromkeys(f"every {one[0]}" for one in wanted if one != DENSE))
            raise MissingRowsError(
                f"no prompt has predictions of dense, {names}, each with a time; run --stage time"
            )
        common = common.unique().sort_values()
        strata = [index.get_level_values("stratum").nunique() for index in (prompts.index, common)]
        return cls({point: rows.loc[common] for point, rows in mine.items()}, strata[0] - strata[1])

    def times(self, point: Point) -> pd.Series:
        """A method's milliseconds: of each stratum its median, as often as it has prompts."""
        return self.of[point].groupby(level="stratum")["prefill_ms"].transform("median")

    def ratios(self, points: Sequence[Point], to: Point) -> dict[Point, float]:
        """Total times over another method's."""
        return {point: float(self.times(point).sum() / self.times(to).sum()) for point in points}

    def arm(self, point: Point, likelihood: bool) -> Arm:
        rows = self.of[point]
        values = rows["likelihood"] - self.of[DENSE]["likelihood"] if likelihood else rows["value"]
        return Arm(_by_stratum(values), _by_stratum(self.times(point)))

    def arms(
        self, first: Point, others: Sequence[Point], unequal: str | None, raised: bool, seed: int
    ) -> _Arms:
        """Of one setting and those that bracket its time. raised: the latter are ours."""
        clusters = _by_stratum(self.of[first]["cluster"])
        draws = Draws({name: list(labels) for name, labels in clusters.items()}, seed)

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
            frozenset(self.of[first]["suite"]),
            self.dropped,
        )


def _by_stratum(column: pd.Series) -> dict[str, np.ndarray]:
    return {str(number): part.to_numpy() for number, part in column.groupby(level="stratum")}


def _arms(prompts: pd.DataFrame, rival: str, seed: int) -> _Arms:
    """Errors: MissingRowsError."""
    if prompts.empty:
        raise MissingRowsError(
            "no prompts of one side of the shift; run tasks on prose and others, and two lengths"
        )
    ours, rivals = (_settings(prompts, method) for method in (OURS, rival))
    if not ours:
        raise MissingRowsError(f"no predictions of {OURS}; add --methods {OURS}={DEFAULT_PRICE:g}")
    mine = min(ours, key=lambda point: (point[1] != DEFAULT_PRICE, point[1]))
    if not rivals:
        raise MissingRowsError(f"no predictions of {rival}; add --methods {rival}")
    shared = _Shared.among(prompts, (mine, *rivals, DENSE))
    ratios = shared.ratios(rivals, mine)
    if min(ratios.values()) > 1 + WITHIN:
        return _raised(prompts, ours, rivals, ratios, seed)
    chosen, all_faster = _bracket(shared, ratios, rival, "ours")
    return shared.arms(mine, chosen, "faster" if all_faster else None, False, seed)


def _settings(prompts: pd.DataFrame, method: str) -> list[Point]:
    """A method's settings; with what all our plans read, where it ran both with and without."""
    found = [point for point, _ in prompts[prompts["method"] == method].groupby(POINT)]
    return [point for point in found if point[2]] or found


def _raised(
    prompts: pd.DataFrame,
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
        shared = _Shared.among(prompts, (*ours, standing, DENSE))
        chosen, all_faster = _bracket(shared, shared.ratios(ours, standing), OURS, f"{rival}'s")
    except MissingRowsError as error:
        raise MissingRowsError(f"{slower}; {error}") from None
    return shared.arms(standing, chosen, "ours faster" if all_faster else None, True, seed)


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
    if faster and shared.of[nearest]["area"].mean() >= 1 - WITHIN:
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
        "suites": sorted(frozenset().union(*(arm.suites for arm in arms))),
        "strata": sum(len(arm.scores.draws.counts) for arm in arms),
        "dropped_strata": sum(arm.dropped for arm in arms),
    }
