"""The predictions and times of a job's folder, by configuration and prompt."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pandas as pd

from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites import pg19
from routesparse.engine.schema import Count, FieldError, Real, checked, in_file

if TYPE_CHECKING:
    from routesparse.engine.lab.runner.job import Job

NUMBERS = ("prefill_ms", "select_ms", "attention_ms")  # medians of a prompt's runs, in a row of times
WHERE = ["length", "task", "config_hash"]  # what times are of


@in_file(more=True)
@dataclass(frozen=True, kw_only=True)
class Timed:
    """What a row of times holds, beside whatever else."""

    config_hash: str
    sample_id: str
    suite: str
    task: str
    length: Count
    seed: int
    prefill_ms: Real
    select_ms: Real
    attention_ms: Real | None = None
    device: str | None = None
    git_commit: str | None = None


@in_file(more=True)
@dataclass(frozen=True, kw_only=True)
class _Prediction(Timed):
    index: Count
    cluster: str
    method: str
    setting: Real
    extras: bool
    prompt_sha256: str
    area: Real
    weights: str | None = None
    processes: Count = 1


@in_file(more=True)
@dataclass(frozen=True, kw_only=True)
class Book(_Prediction):
    """What a prediction of PG-19 holds."""

    row: dict[str, Any]


@in_file(more=True)
@dataclass(frozen=True, kw_only=True)
class Predicted(_Prediction):
    """What any other prediction holds. row: in the suite's own format; None where no answer was decoded."""

    gold_nats: Real
    row: dict[str, Any] | None = None


def _read(path: Path, kind: type[Timed]) -> dict[tuple[str, str, int], dict[str, Any]]:
    """The rows without those that failed, the last for each key. Errors: InputError that names file, line and field."""
    found = {}
    for number, row in read_lines(path) if path.exists() else ():
        if isinstance(row, dict) and "failed" in row:
            continue
        try:
            book = kind is Predicted and isinstance(row, dict) and row.get("suite") == pg19.SUITE.name
            checked(Book if book else kind, row)
        except FieldError as error:
            raise InputError(f"line {number} of {path}: {error}; remove it, and it is made anew") from error
        found[key(row)] = row
    return found


def key(row: dict[str, Any]) -> tuple[str, str, int]:
    """What names a prediction: the configuration and the prompt."""
    return row["config_hash"], row["sample_id"], row["seed"]


def finished(job: Job) -> Iterable[dict[str, Any]]:
    """The predictions made so far, without those that failed; of two for one key the kept one counts, else the later
    one."""
    kept = _read(job.kept, Predicted)
    new = {name: row for name, row in _read(job.predictions, Predicted).items() if name not in kept}
    return (kept | new).values()  # kept ones first: of a method's configurations the last one made counts


def timed(job: Job) -> Iterable[dict[str, Any]]:
    """The times measured so far (timing.py), without those that failed; of two for one key the last counts."""
    return (_read(job.kept_times, Timed) | _read(job.times, Timed)).values()


def read_times(job: Job) -> pd.DataFrame:
    """By configuration (WHERE) the medians of NUMBERS over a task's timed prompts, and ``timed_by``, whose code ran.

    Errors: InputError for times of several devices, which compare nothing.
    """
    rows = [row for row in timed(job) if row["suite"] == job.suite and row["seed"] == job.seed]
    found = pd.DataFrame(rows, columns=[*WHERE, *NUMBERS, "device", "git_commit"])
    devices = sorted(found["device"].astype(str).unique())
    if len(devices) > 1:
        raise InputError(
            f"{job.times} holds times of {' and '.join(devices)}; remove it and run --stage time on one of them"
        )
    by = found.groupby(WHERE)
    commits = by["git_commit"].agg(lambda commits: tuple(sorted(set(commits.dropna()))))
    return by[list(NUMBERS)].median().assign(timed_by=commits)
