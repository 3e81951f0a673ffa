"""The predictions of a job that may be compared: one prompt a sample, one configuration a method, one model."""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Mapping
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab import study
from routesparse.engine.lab.runner.conclude import Point
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.predictions import finished

Row = dict[str, Any]
Rows = dict[str, dict[str, Row]]  # by task, then by sample


def collected(job: Job, prepared: Mapping[str, str] | None) -> dict[int, dict[Point, Rows]]:
    """Predictions of the job's prompts, by length and method; of a method's configurations the last one made.

    What is left out for another configuration (other weights, rules or kernels) is noted.
    prepared: the hash of each sample's prompt; None for a folder with kept predictions, which needs no prompts: there a
    sample's predictions must agree on it.
    Errors: InputError for a prediction of another prompt, or of several models' weights.
    """
    mine = [
        row for row in _of_prompts(job, prepared) if row["seed"] == job.seed and row["suite"] == job.suite
    ]
    last = {(row["length"], _point(row)): row["config_hash"] for row in mine}
    kept = [row for row in mine if last[row["length"], _point(row)] == row["config_hash"]]
    _note_left_out([row for row in mine if last[row["length"], _point(row)] != row["config_hash"]])
    weights = sorted({row["weights"] for row in kept if "weights" in row})
    if len(weights) > 1:
        raise InputError(
            f"{job.out.name} holds predictions of different weights ({', '.join(weights)}), which can't be compared; "
            "predict every method anew with one model, or choose another --out"
        )
    found: dict[int, dict[Point, Rows]] = defaultdict(lambda: defaultdict(lambda: defaultdict(dict)))
    for row in kept:
        found[row["length"]][_point(row)][row["task"]][row["sample_id"]] = row
    return found


def every_row(by_length: Mapping[int, Mapping[Point, Rows]], point: Point | None = None) -> list[Row]:
    """All predictions, or those of one method, in one list."""
    return [
        row
        for points in by_length.values()
        for one, rows in points.items()
        if point in (None, one)
        for by_sample in rows.values()
        for row in by_sample.values()
    ]


def _point(row: Mapping[str, Any]) -> Point:
    return row["method"], row["setting"], row["extras"]


def _of_prompts(job: Job, prepared: Mapping[str, str] | None) -> list[Row]:
    """Errors: InputError."""
    prompts = dict(prepared or {})
    if prepared is None:
        made = [row for row in finished(job) if _asked_for(job, row)]
        for row in made:
            prompts.setdefault(row["sample_id"], row["prompt_sha256"])
    else:
        made = [row for row in finished(job) if row["sample_id"] in prompts]
    other = next(
        (
            row
            for row in made
            if row["seed"] == job.seed and row["prompt_sha256"] != prompts[row["sample_id"]]
        ),
        None,
    )
    if other is not None:
        raise InputError(
            f"{other['sample_id']} was predicted from another prompt than the prepared one; choose another --out"
        )
    return made


def _asked_for(job: Job, row: Mapping[str, Any]) -> bool:
    return (
        row["seed"] == job.seed
        and row["suite"] == job.suite
        and row["length"] in job.lengths
        and row["task"] in job.tasks
        and row["index"] < job.n
    )


def _note_left_out(rows: list[Row]) -> None:
    """A line a length; of many methods only how many."""
    for length, count in sorted(Counter(row["length"] for row in rows).items()):
        points = sorted({_point(row)[:2] for row in rows if row["length"] == length})
        names = ", ".join(f"{name}={setting:g}" for name, setting in points)
        study.note(
            f"{count} predictions of {names if len(points) < 4 else f'{len(points)} methods'} at {length:,} tokens are "
            "of an older configuration (weights, rule or kernels) and left out"
        )
