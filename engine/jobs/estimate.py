"""How long a job will take, from jobs of the same kind that this machine has finished before.

Work grows between linearly (layers, sparse attention) and quadratically (dense attention, audits) with the prompt,
so a past job of another size gives a range, not a number.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from routesparse.engine.jobs.job import Job
from routesparse.engine.jobs.kinds import CalibrateRequest, ProfileRequest
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import Request, RunRequest

NEIGHBOURS = 5
FARTHEST = 16.0  # times longer or shorter: beyond it a past job says nothing
_SAME_KIND = ("model", "audit", "measure_dense")


@dataclass(frozen=True)
class Estimate:
    """From low_s to high_s seconds, as ``jobs`` past ones suggest."""

    low_s: float
    high_s: float
    jobs: int


def job_estimate(
    queue: JobQueue, request: RunRequest, prompt_bytes: int, runs: Collection[str] | None = None
) -> Estimate | None:
    """From load to write, without waiting in the queue; None where nothing comparable has run. Errors: StoreError.

    runs: only jobs that made one of these, such as those of one device; None: all.
    """
    past = [
        (job.prompt_bytes, seconds)
        for job, seconds in _done(queue, request.kind)
        if (runs is None or job.run_id in runs) and _alike(job, request, _SAME_KIND)
    ]
    return scaled(past, prompt_bytes)


def preparation_estimate(queue: JobQueue, request: ProfileRequest | CalibrateRequest) -> Estimate | None:
    """The same for measuring a profile or calibrating this model; None where none has run. Errors: StoreError."""
    names = ("model", "quick") if isinstance(request, ProfileRequest) else ("model",)
    past = [
        (_work(type(request).from_json(job.request_json)), seconds)
        for job, seconds in _done(queue, request.kind)
        if _alike(job, request, names)
    ]
    return scaled(past, _work(request))


def _done(queue: JobQueue, kind: str) -> Iterator[tuple[Job, float]]:
    """The owner's done jobs of a kind, and the seconds that each took."""
    for job in queue.jobs(["done"]):
        if job.kind == kind and job.started_at is not None and job.finished_at is not None:
            yield job, job.finished_at - job.started_at


def _alike(job: Job, request: Request, names: Sequence[str]) -> bool:
    asked = json.loads(job.request_json)
    return all(asked.get(name) == getattr(request, name) for name in names)


def _work(request: ProfileRequest | CalibrateRequest) -> int:
    """Tokens that a calibration prefills; a profile always takes the same."""
    if isinstance(request, ProfileRequest):
        return 1
    return request.prompts * (request.least_tokens + request.most_tokens) // 2


def scaled(past: Sequence[tuple[int, float]], size: int) -> Estimate | None:
    """The estimate for ``size`` from (size, seconds) pairs of the past, the nearest ones only."""
    near = [(n, seconds) for n, seconds in past if n > 0 and 1 / FARTHEST <= size / n <= FARTHEST]
    near.sort(key=lambda pair: abs(math.log(size / pair[0])))
    near = near[:NEIGHBOURS]
    if not near:
        return None
    ends = [statistics.median(s * (size / n) ** power for n, s in near) for power in (1, 2)]
    return Estimate(min(ends), max(ends), len(near))
