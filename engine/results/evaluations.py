"""The scores of evaluations as rows, read from what ``routesparse evaluate`` and ``routesparse report`` wrote.

A file holds one evaluation (scores.json) or several (evaluations.json, ``compact``). What it does not hold is None,
which means "not measured", never 0. No torch here: the dashboard reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine import fields, paths
from routesparse.engine.config import DEFAULT_PRICE
from routesparse.engine.errors import ResultsError
from routesparse.engine.results.schema import FILE, MEDIANS, SCORES

MOST_BYTES = 64 << 20
SHIPPED = "evaluations*.json"
# What a shipped file is, in the order in which they are offered: README cites the first one.
KINDS = {
    "evaluations_kept.json": "main table",
    "evaluations_kept_others.json": "other tasks, outside H1 to H3",
    "evaluations_stories.json": "stories, by an adapter's model",
    "evaluations_main.json": "older main table",
    "evaluations_h1.json": "older table for H1",
    "evaluations.json": "oldest tables",
}
REPLACED = frozenset({"evaluations_main.json", "evaluations_h1.json", "evaluations.json"})  # by the first one
_LENGTHS = re.compile(r" --lengths (\d+(?:,\d+)*)(?!\S)", re.ASCII)
OURS = f"routesparse={DEFAULT_PRICE:g}"  # the product's default, by its name


@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: float
    low: float
    high: float


@dataclass(frozen=True)
class TaskRow:
    """One task by one method, against dense on the same prompts, in points."""

    task: str
    n: int
    few_clusters: bool
    score: float
    dense: float
    difference: Estimate
    harmed: int


@dataclass(frozen=True)
class MethodRow:
    """One method at one length over all tasks. difference: in points; ratio: of word perplexities (PG-19)."""

    length: int
    method: str
    setting: float
    extras: bool
    n: int
    clusters: int | None
    few_clusters: bool
    score: float | None  # in points; of PG-19 the word perplexity
    difference: Estimate | None
    ratio: Estimate | None
    worst_decile: Estimate | None  # nats of the gold answer
    harmed: int | None  # prompts that score lower than dense
    gained: int | None
    newcombe: tuple[float, float] | None  # of 0/1 scores, points; to be read where few prompts differ
    few_discordant: bool
    area: float | None
    select_ms: float | None  # medians over prompts
    prefill_ms: float | None
    attention_ms: float | None
    fallback: float | None
    predicted_by: tuple[str, ...]  # commits; () where not recorded
    timed_by: tuple[str, ...]  # commits of the stage of times
    good_tasks: tuple[str, ...] | None  # where dense reaches 80
    tasks: tuple[TaskRow, ...]

    @property
    def name(self) -> str:
        """Method and setting, as reports print them: dense, routesparse=0.5, xattention=0.9 as published."""
        if self.method in ("dense", "dense_kernel"):
            return self.method
        return f"{self.method}={self.setting:g}" + ("" if self.extras else " as published")

    @property
    def change(self) -> Estimate | None:
        """What is lost or gained against dense: points, or of PG-19 minus the rise of perplexity in percent.

        Newcombe's interval where few prompts differ and scores are 0 or 1: a bootstrap would look too sure.
        """
        if self.ratio is None:
            if self.difference is None or self.newcombe is None or not self.few_discordant:
                return self.difference
            value, (low, high) = self.difference.value, self.newcombe
            return Estimate(value, min(low, value), max(high, value))
        return Estimate(*(100 * (1 - part) for part in (self.ratio.value, self.ratio.high, self.ratio.low)))


@dataclass(frozen=True)
class Verdict:
    """One of the five tests of H1 to H3. why: what is missing, where it was not tested."""

    test: str
    verdict: str
    p_holm: float | None
    estimates: tuple[Estimate, ...]
    n: int | None
    clusters: int | None
    few_clusters: bool
    settings: tuple[
        tuple[str, ...], ...
    ]  # whose time counts, ours or a slower rival, then those that bracket it
    suites: tuple[str, ...]  # whose prompts were used; () where not tested or not recorded
    strata: int | None  # a suite's task at one length each
    dropped_strata: int | None  # that lack a setting of the test
    time_ratios: tuple[tuple[float, ...], ...]  # of the other settings to the first; () where not recorded
    unequal: (
        str | None
    )  # "faster" than ours is every setting of the rival; "ours faster": the other way round
    why: str | None


@dataclass(frozen=True)
class Evaluation:
    """One suite on one model: where its numbers come from, and all of them."""

    suite: str
    n: int
    seed: int
    model: str
    created_at: str
    command: str | None
    processes: int | None  # that predicted at once
    timed_alone: bool  # whether the times are of a stage of its own
    cells: int | None  # tasks at one length
    timed_cells: int | None  # that this stage has timed
    devices: tuple[str, ...]
    commits: tuple[str, ...]  # of the code that predicted
    rows: tuple[MethodRow, ...]
    verdicts: tuple[Verdict, ...]

    @property
    def lengths(self) -> list[int]:
        """Prompt lengths in tokens, ascending."""
        return sorted({row.length for row in self.rows})

    @property
    def is_perplexity(self) -> bool:
        """Whether its scores are perplexities, of which less is better."""
        return any(row.ratio is not None for row in self.rows)

    def at(self, length: int) -> list[MethodRow]:
        """The rows of one length that have prompts, dense first, ours next."""
        found = [row for row in self.rows if row.length == length and row.n]
        return sorted(found, key=lambda row: (_rank(row.method), row.method, row.setting, not row.extras))

    @property
    def source(self) -> str:
        """n, seed, device and commit in one line."""
        devices = ", ".join(self.devices) or "device not recorded"
        commits = ", ".join(commit[:7] for commit in self.commits) or "not recorded"
        if (self.processes or 1) > 1:
            devices += f", {self.processes} processes at once"
            devices += (
                f"; times of one alone{self._timed}" if self.timed_alone else " (their times compare nothing)"
            )
        missing = ", ".join(f"{length:,}" for length in self.not_run)
        asked = (
            f"a task and length run of {self.n}" if self.by_task else f"a length run, {self.n} of each task"
        )
        return (
            f"{self.run} prompts {asked} asked for"
            f"{f'; {missing} tokens: not run' if missing else ''}, "
            f"seed {self.seed}, model {self.model}, {devices}, commit {commits}, scored {self.created_at[:10]}"
        )

    @property
    def _timed(self) -> str:
        """Where a stage of times was cut off: how far it came."""
        if self.cells is None or self.timed_cells == self.cells:
            return ""
        return f", in {self.timed_cells} of {self.cells} cells of a task and length"

    @property
    def by_task(self) -> bool:
        """Whether prompts are counted by task; those of a perplexity are not."""
        return any(row.tasks for row in self.rows)

    @property
    def run(self) -> str:
        """The fewest and the most prompts of a task and length that dense has; without tasks, of a length."""
        dense = [row for row in self.rows if row.method == "dense" and row.n]
        counts = [task.n for row in dense for task in row.tasks] or [row.n for row in dense] or [0]
        return f"{min(counts)}" if min(counts) == max(counts) else f"{min(counts)} to {max(counts)}"

    @property
    def not_run(self) -> list[int]:
        """Lengths that the command names and that hold no prompts."""
        named = _LENGTHS.search(self.command or "")
        asked = {int(length) for length in named[1].split(",")} if named else set()
        return sorted(length for length in asked if not self.at(length))

    @property
    def made_by(self) -> str:
        """The command, for once on a page."""
        return f"{self.suite}: made by {self.command or f'routesparse evaluate {self.suite}'}"


def read(path: Path) -> tuple[list[Evaluation], tuple[Verdict, ...]]:
    """The evaluations of one file, and the verdicts over all of them.

    Errors: ResultsError, which names the file and what is wrong in it.
    """
    try:
        return _parsed(fields.read_json(path, MOST_BYTES))
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ResultsError(
            f"{path.parent.name}/{path.name} can't be read: {said}; write it again with `routesparse evaluate SUITE "
            "--stage score`"
        ) from None


def shipped() -> list[Path]:
    """The results that come with RouteSparse, in the order of KINDS; a file that is not named there comes last."""
    order = {name: place for place, name in enumerate(KINDS)}
    found = (paths.DATA / "results").glob(SHIPPED)
    return sorted(found, key=lambda path: (order.get(path.name, len(order)), path.name))


def of_home() -> list[Path]:
    """The score files of the evaluations that were run here."""
    return sorted((paths.home() / "evaluations").glob("*/scores.json"))


def compact(scores: Sequence[Mapping[str, Any]], together: Sequence[Mapping[str, Any]], command: str) -> str:
    """Several score files as one, with the verdicts over all of them; six digits are kept."""
    kept = [{name: one[name] for name in ("about", "suite", "hypotheses") if name in one} for one in scores]
    made = {"command": command, "evaluations": _rounded(kept), "together": _rounded(list(together))}
    return json.dumps(made, separators=(",", ":")) + "\n"


def of_text(text: str) -> tuple[list[Evaluation], tuple[Verdict, ...]]:
    """The evaluations of a file's text, and the verdicts over all of them. Errors: ValueError."""
    return _parsed(json.loads(text, object_pairs_hook=fields.no_field_twice))


def _parsed(values: Any) -> tuple[list[Evaluation], tuple[Verdict, ...]]:
    """Errors: FieldError."""
    if isinstance(values, dict) and "evaluations" in values:
        FILE(values, "")
        return [_evaluation(one) for one in values["evaluations"]], tuple(
            map(_verdict, values.get("together", ()))
        )
    SCORES(values, "")
    only = _evaluation(values)
    return [only], only.verdicts


def _evaluation(values: Mapping[str, Any]) -> Evaluation:
    about = values["about"]
    return Evaluation(
        suite=about["suite"],
        n=about["n"],
        seed=about["seed"],
        model=about["model"],
        created_at=about["created_at"],
        command=about.get("command"),
        processes=about.get("processes"),
        timed_alone=about.get("timed_alone", False),
        cells=about.get("cells"),
        timed_cells=about.get("timed_cells"),
        devices=tuple(about.get("devices", ())),
        commits=tuple(about.get("predicted_by_commits", ())),
        rows=tuple(map(_row, values["suite"])),
        verdicts=tuple(map(_verdict, values.get("hypotheses", ()))),
    )


def _row(values: Mapping[str, Any]) -> MethodRow:
    medians = values.get("medians", {})
    good = values.get("tasks_where_dense_reaches_80")
    measures = values.get("measures")
    return MethodRow(
        length=values["length"],
        method=values["method"],
        setting=values["setting"],
        extras=values["extras"],
        n=values["n"],
        clusters=values.get("clusters"),
        few_clusters=values.get("few_clusters", False),
        score=values.get("score") if measures is None else measures["word_perplexity"],
        difference=_estimate(values.get("difference")),
        ratio=_estimate(values.get("word_perplexity_ratio")),
        worst_decile=_estimate(values.get("worst_decile")),
        harmed=values.get("harmed"),
        gained=values.get("gained"),
        newcombe=None if values.get("newcombe") is None else tuple(values["newcombe"]),
        few_discordant=values.get("few_discordant", False),
        area=values.get("area"),
        predicted_by=tuple(values.get("predicted_by", ())),
        timed_by=tuple(values.get("timed_by", ())),
        good_tasks=None if good is None else tuple(good),
        tasks=tuple(
            TaskRow(
                one["task"],
                one["n"],
                one["few_clusters"],
                one["score"],
                one["dense"],
                _interval(one["difference"]),
                one["harmed"],
            )
            for one in values.get("by_task", ())
        ),
        **{name: medians.get(name) for name in MEDIANS},
    )


def _verdict(values: Mapping[str, Any]) -> Verdict:
    optional = ("p_holm", "n", "clusters", "strata", "dropped_strata", "unequal", "why")
    return Verdict(
        test=values["test"],
        verdict=values["verdict"],
        estimates=tuple(map(_interval, values.get("estimates", ()))),
        few_clusters=values.get("few_clusters", False),
        settings=tuple(map(tuple, values.get("settings", ()))),
        suites=tuple(values.get("suites", ())),
        time_ratios=tuple(map(tuple, values.get("time_ratios", ()))),
        **{name: values.get(name) for name in optional},
    )


def _estimate(values: Mapping[str, float] | None) -> Estimate | None:
    return None if values is None else _interval(values)


def _interval(values: Mapping[str, float]) -> Estimate:
    return Estimate(values["value"], values["low"], values["high"])


def _rank(method: str) -> int:
    """Dense, dense by our kernel, ours, our ablations, the others."""
    order = {"dense": 0, "dense_kernel": 1, "routesparse": 2}
    return order.get(method, 3 if method.startswith("routesparse") else 4)


def _rounded(value: Any) -> Any:
    if isinstance(value, float):
        return float(f"{value:.6g}")
    if isinstance(value, Mapping):
        return {name: _rounded(entry) for name, entry in value.items()}
    return [_rounded(entry) for entry in value] if isinstance(value, list | tuple) else value
