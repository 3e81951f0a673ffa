"""A job as pages see it, and as the worker that runs it holds it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any, Literal

from routesparse.engine.jobs.presence import Device

Kind = Literal["analyse", "profile", "calibrate", "fit"]
State = Literal["queued", "running", "done", "failed", "cancelled"]
FailureKind = Literal[
    "prompt",
    "model",
    "unsupported_model",
    "calibration",
    "profile",
    "config",
    "out_of_memory",
    "numerics",
    "disk_full",
    "bundle",
    "store",
    "worker_lost",
    "unexpected",
]
Progress = tuple[str | None, int | None, int | None]  # stage, done, total
ENDED: tuple[State, ...] = ("done", "failed", "cancelled")
MOST_LEASE_S = 60.0


def lease_end(clock: float, lease_s: float) -> float:
    """When a lease of so many seconds, at most MOST_LEASE_S, runs out. clock: the queue's for leases, now."""
    return clock + min(lease_s, MOST_LEASE_S)


def lease_runs(clock: float, lease_until: float) -> bool:
    """Whether a lease is still valid. One that ends later than any could is from before the clock began anew."""
    return 0.0 <= lease_until - clock <= MOST_LEASE_S


@dataclass(frozen=True)
class Failure:
    """Why a job failed: a kind for programs, a message for people, and where the log says more."""

    kind: FailureKind
    message: str
    log_id: str | None


@dataclass(frozen=True)
class Job:
    """One row of the queue. Times are seconds since 1970, UTC; None means that it has not happened."""

    id: str
    kind: Kind  # or, in the queue of a newer version, a word that this one does not know
    state: State
    label: str
    request_json: str  # kinds.read_request reads it
    prompt_sha256: str
    prompt_bytes: int
    keep_text: bool
    created_at: float
    started_at: float | None  # of the last attempt
    finished_at: float | None
    attempt: int  # how often a worker took it
    losses: int  # how many of these workers were lost
    worker: str | None
    lease_until: float | None
    cancel_requested: bool
    stage: str | None  # of STAGES[kind]
    done: int | None  # of total in this stage: layers, or None
    total: int | None
    run_id: str | None  # of a done job: "<job id>-<attempt>", which is the run of an analysis
    result: str | None  # of a done job that made no run: the name of the profile, calibration or fit
    failure: Failure | None
    sweep: str | None = None  # the id that jobs of one sweep share (sweep.py); None: a job of its own

    @property
    def ended(self) -> bool:
        """Whether nothing will change any more."""
        return self.state in ENDED

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> Job:
        """A row of table job."""
        values = {each.name: row[each.name] for each in fields(cls) if each.name != "failure"}
        failed = row["error_kind"] is not None
        return cls(
            **{
                **values,
                "keep_text": bool(row["keep_text"]),
                "cancel_requested": bool(row["cancel_requested"]),
            },
            failure=Failure(row["error_kind"], row["error_message"], row["log_id"]) if failed else None,
        )


# The stages in order, with the names that the engine reports; "dense" only where it was asked for, "profile" of an
# analysis or a calibration and "compile" only on a machine that has not done so before, "heads" only in a first fit.
STAGES: dict[str, tuple[str, ...]] = {
    "analyse": ("load", "tokenize", "profile", "compile", "route", "dense", "write"),
    "profile": ("profile", "write"),
    "calibrate": ("load", "tokenize", "profile", "compile", "fold A", "fold B", "write"),
    "fit": ("load", "tokenize", "profile", "compile", "heads", "windows", "write"),
}


@dataclass(frozen=True)
class Claim:
    """The right to run a job once. (job_id, attempt) is the fence: attempts only grow, so an old claim never
    matches again, however late its worker wakes up."""

    job_id: str
    attempt: int
    request_json: str
    label: str
    kind: Kind = "analyse"
    has_content: bool = True  # a prompt or documents came with the job
    sweep: str | None = None

    @property
    def run_id(self) -> str:
        """The run, or other result, of this attempt. Unique, so that two attempts never write the same folder."""
        return f"{self.job_id}-{self.attempt}"


@dataclass(frozen=True)
class WorkerSeen:
    """A worker that has reported: seconds since 1970."""

    id: str
    started_at: float
    seen_at: float
    device: Device | None = None  # None: it has not said
