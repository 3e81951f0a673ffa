"""The predictions and times of a job's folder, by configuration and prompt."""

from __future__ import annotations

import statistics
from collections import defaultdict
from collections.abc import Iterable, Mapping
from typing import TYPE_CHECKING, Any

from routesparse.engine.errors import InputError
from routesparse.engine.evaluation.studies.selection import rows

if TYPE_CHECKING:
    from routesparse.engine.evaluation.runner.job import Job

NUMBERS = ("prefill_ms", "select_ms", "attention_ms")  # medians of a prompt's runs, in a row of times
Where = tuple[int, str, str]  # length, task, hash of the configuration


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    """What names a prediction: the configuration and the prompt."""
    return row["config_hash"], row["sample_id"], row["seed"]


def finished(job: Job) -> Iterable[dict[str, Any]]:
    """The predictions made so far, kept ones first, without those that failed; of two for one key the kept one counts,
    else the later one."""
    found: dict[tuple[str, str, int], dict[str, Any]] = {}
    for path in rows.parts(job.predictions):
        found |= {key(row): row for row in rows.read_lines(path) if "failed" not in row}
    kept = {key(row): row for row in rows.read_lines(job.kept)}
    return (kept | {name: row for name, row in found.items() if name not in kept}).values()


def timed(job: Job) -> Iterable[dict[str, Any]]:
    """The times measured so far (timing.py), without those that failed; of two for one key the last counts."""
    kept = {key(row): row for row in rows.read_lines(job.kept_times)}
    found = {key(row): row for row in rows.read_lines(job.times) if "failed" not in row}
    return (kept | found).values()


def time_commits(job: Job) -> Mapping[Where, set[str]]:
    """Which commits' code was timed, by configuration."""
    found: dict[Where, set[str]] = defaultdict(set)
    for row in timed(job):
        if row["suite"] == job.suite and row["seed"] == job.seed and row.get("git_commit"):
            found[row["length"], row["task"], row["config_hash"]].add(row["git_commit"])
    return found


def read_times(job: Job) -> Mapping[Where, dict[str, float]]:
    """Medians over a task's timed prompts of one length, by configuration.

    Errors: InputError for times of several devices, which compare nothing.
    """
    found: dict[Where, list[dict[str, Any]]] = defaultdict(list)
    devices = set()
    for row in timed(job):
        if row["suite"] == job.suite and row["seed"] == job.seed:
            found[row["length"], row["task"], row["config_hash"]].append(row)
            devices.add(str(row.get("device")))
    if len(devices) > 1:
        raise InputError(
            f"{job.times} holds times of {' and '.join(sorted(devices))}; remove it and run --stage time on one of them"
        )
    return {
        where: {name: statistics.median(row[name] for row in measured) for name in NUMBERS}
        for where, measured in found.items()
    }
