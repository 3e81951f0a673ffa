"""The settings of a sweep as rows: what was asked, how far it is, and what its run measured."""

from __future__ import annotations

from collections.abc import Hashable, Sequence
from dataclasses import dataclass
from string import ascii_uppercase
from typing import Any

import pandas as pd

from routesparse.app.shell import jobs_view, setting_words, verdict_bar
from routesparse.app.ui import numbers
from routesparse.app.ui.error_words import wrong
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs import sweep
from routesparse.engine.jobs.job import Job
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.store import verdicts

# What a run measured, by the names of queries.runs.
MEASURED = (
    *(
        "run_id",
        "routed",
        "density",
        "kl_nats",
        "mean_error",
        "sparse_units",
        "audit_rows",
        "total_ms",
        "dense_ms",
    ),
    "speedup",
)


@dataclass(frozen=True)
class Error:
    """One measure of error: its column, its name and unit, and what n counts."""

    column: str
    name: str
    unit: str
    term: str  # of the glossary
    counts: str

    def text(self, value: Any) -> str:
        """A value with its unit, with digits enough to tell it from a limit."""
        if numbers.is_missing(value):
            return numbers.NOT_MEASURED
        return f"{value:.3g}{self.unit}" if value < 1000 else f"{value:,.0f}{self.unit}"

    def counted(self, rows: pd.DataFrame) -> str:
        """What n counts in these settings."""
        audited = sorted({int(count) for count in rows["audit_rows"].dropna() if count})
        if self.column == "mean_error" and not audited:
            return numbers.NOT_MEASURED
        return self.counts.format(rows=" or ".join(map(str, audited)))

    @property
    def noun(self) -> str:
        """The name within a sentence."""
        return self.name if self.name.startswith("KL") else self.name[0].lower() + self.name[1:]

    @property
    def label(self) -> str:
        """The name with its unit, for an axis or a field."""
        return f"{self.noun},{self.unit}" if self.unit else self.noun


ERRORS = {
    "kl": Error(
        "kl_nats", "KL of the next token", " nats", "answer", "n = 1 next token a setting, against dense"
    ),
    "audited": Error(
        "mean_error", "Audited output error", "", "error", "mean over {rows} rows of every sparse unit"
    ),
}
COSTS = {"area": "density", "time": "total_ms"}


def table(jobs: Sequence[Job], runs: pd.DataFrame) -> pd.DataFrame:
    """One row a setting: ``letter``, ``setting`` in words, price, budget and calibration, ``state``, ``job`` and
    ``failure`` (None: no job is known here), ``verdict`` and what MEASURED names; NULL where nothing was measured.

    jobs: all of the sweep, oldest first; runs: those stored, with or without a job.
    """
    measured = {row["run_id"]: row for row in runs.to_dict("records")}
    judged = dict(zip(runs["run_id"], verdicts.of_rows(runs), strict=True))
    rows = []
    for job in sweep.newest(jobs):
        stored = job.run_id in measured
        rows.append(
            {
                **_varied(job, measured.get(str(job.run_id))),
                "state": _state(job, stored),
                "job": job.id,
                "run_id": job.run_id if stored else None,
            }
        )
    known = {job.run_id for job in jobs}
    rows += [
        {
            **{name: run[name] for name in sweep.VARIED},
            "state": "done",
            "job": None,
            "failure": None,
            "readable": True,
            "run_id": run_id,
        }
        for run_id, run in measured.items()
        if run_id not in known
    ]
    rows = [
        {name: None if numbers.is_missing(value) else value for name, value in row.items()} for row in rows
    ]
    names = sweep.varied_in([row for row in rows if row["readable"]]) or ["price"]
    for letter, row in zip(ascii_uppercase, rows, strict=False):
        run = measured.get(str(row["run_id"]), {})
        row.update({name: run.get(name) for name in MEASURED if name != "run_id"})
        told = ", ".join(_words(name, row[name]) for name in names)
        row["letter"], row["setting"] = letter, told if row.pop("readable") else "unknown setting"
        row["verdict"] = verdict_bar.cell(judged[str(row["run_id"])]) if run else None
    found = pd.DataFrame([row for row in rows if "letter" in row])
    numeric = [name for name in MEASURED if name not in ("run_id", "routed")]
    return found.astype(dict.fromkeys(numeric, float)) if len(found) else found


def error_of(rows: pd.DataFrame, wanted: str | None) -> str:
    """The key of ERRORS that the address wants, else the first one that was measured."""
    if wanted in ERRORS:
        return str(wanted)
    return next((key for key, error in ERRORS.items() if rows[error.column].notna().any()), "kl")


def _varied(job: Job, run: dict[Hashable, Any] | None) -> dict[str, Any]:
    """What the job was asked to do, of what a sweep varies, and its failure; its run says so where the request is a
    newer version's. ``readable``: whether either does."""
    failure = job.failure and wrong(job.failure.message)
    try:
        asked = RunRequest.from_json(job.request_json)
    except ConfigError as error:
        if run is not None:
            return {**{name: run[name] for name in sweep.VARIED}, "failure": failure, "readable": True}
        return {**dict.fromkeys(sweep.VARIED), "failure": failure or str(error), "readable": False}
    price = asked.config().price if asked.policy == "priced" else None
    values = {"price": price, "budget": asked.budget, "calibration": asked.calibration}
    return {**values, "failure": failure, "readable": True}


def _state(job: Job, stored: bool) -> str:
    if job.state == "done" and not stored:
        return "finished, not in the store"
    return jobs_view.STATES[job.state]


def _words(name: str, value: Any) -> str:
    if name == "price":
        return "default price" if value is None else f"price {value:g}"
    if name == "budget":
        return setting_words.time_limit(value)
    return f"calibration {value or 'none'}"
