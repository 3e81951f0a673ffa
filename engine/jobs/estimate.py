"""How long a job will take, from jobs of the same kind that this machine has finished before.

Work grows between linearly (layers, sparse attention) and quadratically (dense attention, audits) with the prompt,
so a past job of another size gives a range, not a number.
"""

from __future__ import annotations

import bisect
import itertools
import json
import statistics
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass

from routesparse.engine.jobs.job import Job
from routesparse.engine.jobs.kinds import FitRequest, Preparation, ProfileRequest
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import Request, RunRequest

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


def preparation_estimate(queue: JobQueue, request: Preparation) -> Estimate | None:
    """The same for a job that prepares this model; None where none has run. Errors: StoreError."""
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


def _work(request: Preparation) -> int:
    """Tokens that a calibration or a fit reads; a profile always takes the same."""
    if isinstance(request, ProfileRequest):
        return 1
    if isinstance(request, FitRequest):
        return request.windows * request.tokens
    return request.prompts * (request.least_tokens + request.most_tokens) // 2


def scaled(past: Sequence[tuple[int, float]], size: int) -> Estimate | None:
    """The estimate for ``size`` from (size, seconds) pairs of the past; None where none is near.

    A longer prompt is never estimated faster: each past size counts with the median of its times, or of a smaller
    one's that took longer, and between two of them nothing leaves their times. The range is then as wide as the past
    jobs lay around that.
    """
    times: dict[int, list[float]] = {}
    for n, seconds in past:
        if n > 0:
            times.setdefault(n, []).append(seconds)
    if not any(1 / FARTHEST <= size / n <= FARTHEST for n in times):
        return None
    sizes = sorted(times)
    usual = dict(
        zip(sizes, itertools.accumulate((statistics.median(times[n]) for n in sizes), max), strict=True)
    )
    around = [seconds / usual[n] for n in sizes for seconds in times[n] if usual[n]] or [1.0]
    place = bisect.bisect_right(sizes, size)
    near = sizes[max(0, place - 1) : place + 1]
    ends = [usual[n] * (size / n) ** power for n in near for power in (1, 2)]
    if len(near) == 2:
        ends = [min(max(end, usual[near[0]]), usual[near[1]]) for end in ends]
    return Estimate(min(ends) * min(1, *around), max(ends) * max(1, *around), sum(map(len, times.values())))
