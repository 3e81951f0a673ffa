"""A job in steps: a trial that says what the whole costs, a screen that finds the tasks that tell, then those tasks.

A task on which dense attention fails, or that a window or random blocks solve, says nothing about a plan. So with
``--screen N`` the first N prompts of each task and length run by all methods and the CONTROLS, and only tasks that tell
go on to ``--n``. A task tells where

    dense answers   it scores at least DENSE points on the answers that were decoded
    controls lose   under each control the gold answer's log-likelihood is lower by at least LOST nats on average, and
                    the one-sided 95 % bound of that mean over prompts, paired with dense's, is above 0
    enough          of the screen's prompts at least LEAST were predicted, or all

The screen looks at dense and the controls alone, so that no method's prompts are chosen by how it does. Its prompts are
part of what is reported; a task's place in the report does not depend on the methods that are compared there.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import TYPE_CHECKING, Any

import pandas as pd
from scipy.stats import t

from routesparse.engine.lab.runner.job import CONTROLS, Job
from routesparse.engine.lab.runner.predictions import finished
from routesparse.engine.lab.studies.selection.methods import rounds
from routesparse.engine.lab.suites.registry import find

if TYPE_CHECKING:
    from routesparse.engine.lab.runner.prepare import Prepared

TRIAL = 2  # prompts a length whose time foretells the others': the first one compiles kernels
DENSE, LOST, ONE_SIDED, LEAST = 30.0, 1.0, 0.95, 8
Cell = tuple[int, str]  # length and task


@dataclass(frozen=True)
class Screened:
    """One task at one length. asked: prompts of a screen. dense: points, None where none was decoded. lost: nats by
    control, mean and bound."""

    length: int
    task: str
    n: int
    asked: int
    dense: float | None
    lost: dict[str, tuple[float, float]]

    @property
    def tells(self) -> bool:
        """Whether dense answers and every control loses."""
        return (
            self.n >= min(LEAST, self.asked)
            and self.dense is not None
            and self.dense >= DENSE
            and len(self.lost) == len(CONTROLS)
            and all(mean >= LOST and bound > 0 for mean, bound in self.lost.values())
        )

    @property
    def told(self) -> dict[str, Any]:
        """As scores.json holds it."""
        return asdict(self) | {"tells": self.tells}


def screened(job: Job) -> list[Screened]:
    """The screen of a job's predictions so far, by length and task; empty without ``--screen``."""
    if not job.screen:
        return []
    names = ["length", "task", "index", "method", "setting", "gold_nats", "row"]
    rows = [row for row in finished(job) if row["seed"] == job.seed and row["suite"] == job.suite]
    made = pd.DataFrame(rows, columns=names)
    made = made[made["index"] < job.screen].drop_duplicates(names[:5], keep="last")
    cells = made.groupby(["length", "task"]).groups
    return [
        _screened(job, cell, made.loc[cells[cell]])
        for cell in ((length, task) for length in job.lengths for task in job.tasks)
        if cell in cells
    ]


def _screened(job: Job, cell: Cell, rows: pd.DataFrame) -> Screened:
    dense = rows[rows["method"] == "dense"].set_index("index")
    decoded = list(dense["row"].dropna())
    lost = {}
    for control, (name, setting) in zip(CONTROLS, rounds(CONTROLS)[0], strict=True):
        mine = rows[(rows["method"] == name) & (rows["setting"] == setting)].set_index("index")
        change = (mine["gold_nats"] - dense["gold_nats"]).dropna().to_numpy(float)
        if len(change) > 1:
            error = change.std(ddof=1) / math.sqrt(len(change))
            lost[control] = (
                float(change.mean()),
                float(change.mean() - t.ppf(ONE_SIDED, len(change) - 1) * error),
            )
    points = find(job.suite).score(cell[1], decoded).score if decoded else None
    return Screened(*cell, len(dense), job.screen, points, lost)


def trial(job: Job, prompts: Iterable[Prepared]) -> list[Prepared]:
    """The first prompts of each length, of a screen's where there is one."""
    by_length: dict[int, list[Prepared]] = {}
    for one in prompts:
        if job.screen and one.example.index >= job.screen:
            continue
        by_length.setdefault(one.length, []).append(one)
    return [one for mine in by_length.values() for one in mine[:TRIAL]]


def cost(job: Job, rows: Iterable[Mapping[str, Any]], prompts: Sequence[Prepared], processes: int) -> str:
    """What the job's predictions will take here, in a line, by the times of those that are made (``took_s``); "" where
    no time is known, or none is left."""
    point = ["length", "method", "setting"]
    made = pd.DataFrame(list(rows), columns=[*point, "sample_id", "took_s"])
    times = made.dropna(subset=["took_s"]).groupby(point)["took_s"]
    each = times.median().where(times.size() > TRIAL, times.min())  # the first ones compile kernels
    done = set(made[["sample_id", "method", "setting"]].itertuples(index=False, name=None))
    parts, least, most = [], 0.0, 0.0
    for length in job.lengths:
        asked = [
            one for turn in rounds(["dense", *job.methods]) for one in turn if (length, *one) in each.index
        ]
        missing = [
            (prepared.example.index, float(each[length, *one]))
            for prepared in prompts
            if prepared.length == length
            for one in asked
            if (prepared.sample_id, *one) not in done
        ]
        took = sum(seconds for _, seconds in missing)
        most += took
        least += sum(seconds for index, seconds in missing if not job.screen or index < job.screen)
        if missing:
            parts.append(f"{len(missing)} predictions of {length:,} tokens at {took / len(missing):.2f} s")
    if not most:
        return ""
    low, high = (f"{seconds / 60 / processes:.1f} min" for seconds in (least, most))
    span = f"{low} where no task tells, {high} where all do," if job.screen else high
    there = f"{processes} process{'es' * (processes > 1)}"
    return f"the rest takes about {span} on {there}: {', '.join(parts)}"


def told(found: Iterable[Screened]) -> str:
    """The screen in a line a task."""
    lines = []
    for one in found:
        losses = ", ".join(f"{name} {mean:+.1f} ({bound:+.1f})" for name, (mean, bound) in one.lost.items())
        points = "no answer decoded" if one.dense is None else f"dense {one.dense:g}"
        verdict = "tells" if one.tells else "does not tell"
        lines.append(f"{one.length:,} {one.task}: {verdict}; {points}; gold nats lost: {losses}")
    return "\n".join(lines)


def chosen(job: Job, found: Iterable[Screened], prompts: Sequence[Prepared]) -> list[Prepared]:
    """The prompts beyond the screen, of the tasks that tell."""
    telling = {(one.length, one.task) for one in found if one.tells}
    return [
        one
        for one in prompts
        if one.example.index >= job.screen and (one.length, one.example.task) in telling
    ]
