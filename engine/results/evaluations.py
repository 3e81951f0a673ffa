"""The scores of evaluations as rows, read from what ``routesparse evaluate`` and ``routesparse report`` wrote.

A file holds one evaluation (scores.json) or several (``compact``). What it does not hold is None,
which means "not measured", never 0. No torch here: the dashboard reads it.
"""

from __future__ import annotations

import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any

from routesparse.engine import paths
from routesparse.engine.config import DEFAULT_PRICE
from routesparse.engine.errors import ResultsError
from routesparse.engine.files.plain_files import read_json
from routesparse.engine.schema import Count, Number, Positive, Real, Text, checked, from_json, in_file

MOST_BYTES = 8 << 20
SHIPPED = "evaluations_*.json"
# What a shipped file is.
KINDS = {
    "evaluations_kept.json": "main table",
    "evaluations_kept_others.json": "other tasks",
    "evaluations_stories.json": "stories, by an adapter's model",
}
_LENGTHS = re.compile(r" --lengths (\d+(?:,\d+)*)(?!\S)", re.ASCII)
AtLeast0 = Annotated[float, Number(0.0)]
_ABOUT = "suite n seed model created_at command processes timed_alone cells timed_cells devices"
OURS = f"routesparse={DEFAULT_PRICE:g}"  # the product's default, by its name


@in_file(more=True)
@dataclass(frozen=True)
class Estimate:
    """A value with its 95 % interval."""

    value: Real
    low: Real
    high: Real


@in_file(more=True)
@dataclass(frozen=True)
class TaskRow:
    """One task by one method, against dense on the same prompts, in points."""

    task: Text
    n: Positive
    few_clusters: bool
    score: Real
    dense: Real
    difference: Estimate
    harmed: Count


@in_file(
    more=True,
    score=[("measures", "word_perplexity"), "score"],
    ratio="word_perplexity_ratio",
    **{name: ("medians", name) for name in ("select_ms", "prefill_ms", "attention_ms", "fallback")},
    good_tasks="tasks_where_dense_reaches_80",
    tasks="by_task",
)
@dataclass(frozen=True)
class MethodRow:
    """One method at one length over all tasks. difference: in points; ratio: of word perplexities (PG-19)."""

    length: Positive
    method: Text
    setting: Real
    extras: bool
    n: Count
    clusters: Positive | None = None
    few_clusters: bool = False
    score: Real | None = None  # in points; of PG-19 the word perplexity
    difference: Estimate | None = None
    ratio: Estimate | None = None
    worst_decile: Estimate | None = None  # nats of the gold answer
    harmed: Count | None = None  # prompts that score lower than dense
    gained: Count | None = None
    newcombe: tuple[Real, Real] | None = None  # of 0/1 scores, points; to be read where few prompts differ
    few_discordant: bool = False
    area: Annotated[float, Number(0.0, 1.001)] | None = None
    select_ms: AtLeast0 | None = None  # medians over prompts
    prefill_ms: AtLeast0 | None = None
    attention_ms: AtLeast0 | None = None
    fallback: AtLeast0 | None = None
    predicted_by: tuple[Text, ...] = ()  # commits; () where not recorded
    timed_by: tuple[Text, ...] = ()  # commits of the stage of times
    good_tasks: tuple[Text, ...] | None = None  # where dense reaches 80
    tasks: tuple[TaskRow, ...] = ()

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


@in_file(
    more=True,
    **{name: ("about", name) for name in _ABOUT.split()},
    commits=("about", "predicted_by_commits"),
    rows="suite",
)
@dataclass(frozen=True)
class Evaluation:
    """One suite on one model: where its numbers come from, and all of them."""

    suite: Text
    n: Positive
    seed: Count
    model: Text
    created_at: Text
    rows: tuple[MethodRow, ...]
    command: Text | None = None
    processes: Positive | None = None  # that predicted at once
    timed_alone: bool = False  # whether the times are of a stage of its own
    cells: Count | None = None  # tasks at one length
    timed_cells: Count | None = None  # that this stage has timed
    devices: tuple[Text, ...] = ()
    commits: tuple[Text, ...] = ()  # of the code that predicted

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


@dataclass(frozen=True)
class _Several:
    """A file of several evaluations."""

    command: Text
    evaluations: tuple[Evaluation, ...]


def read(path: Path) -> list[Evaluation]:
    """The evaluations of one file. Errors: ResultsError, which names the file and what is wrong in it."""
    try:
        return _parsed(read_json(path, MOST_BYTES))
    except (OSError, ValueError) as error:
        said = getattr(error, "strerror", None) or str(error)
        raise ResultsError(
            f"{path.parent.name}/{path.name} can't be read: {said}; write it again with `routesparse evaluate SUITE "
            "--stage score`"
        ) from None


def shipped() -> list[Path]:
    """The results that come with RouteSparse, by name: the main table is the first."""
    return sorted((paths.DATA / "results").glob(SHIPPED))


def of_home() -> list[Path]:
    """The score files of the evaluations that were run here."""
    return sorted((paths.home() / "evaluations").glob("*/scores.json"))


def compact(scores: Sequence[Mapping[str, Any]], command: str) -> str:
    """Several score files as one; six digits are kept."""
    kept = [{name: one[name] for name in ("about", "suite") if name in one} for one in scores]
    made = {"command": command, "evaluations": _rounded(kept)}
    return json.dumps(made, separators=(",", ":")) + "\n"


def of_text(text: str) -> list[Evaluation]:
    """The evaluations of a file's text. Errors: ValueError."""
    return _parsed(from_json(text))


def _parsed(values: Any) -> list[Evaluation]:
    """Errors: FieldError."""
    if isinstance(values, dict) and "evaluations" in values:
        return list(checked(_Several, values).evaluations)
    return [checked(Evaluation, values)]


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
