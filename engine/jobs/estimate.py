"""How long a job will take, from jobs of the same kind that this machine has finished before.

Work grows between linearly (layers, sparse attention) and quadratically (dense attention, audits) with the prompt,
so a past job of another size gives a range, not a number.
"""

from __future__ import annotations

import json
import math
import statistics
from collections.abc import Collection, Sequence
from dataclasses import dataclass

from routesparse.engine.jobs.kinds import CalibrateRequest, ProfileRequest
from routesparse.engine.jobs.queue import JobQueue
from routesparse.engine.jobs.request import RunRequest

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
    past = []
    for job in queue.jobs(["done"]):
        asked = json.loads(job.request_json)
        if (
            job.kind != request.kind
            or job.started_at is None
            or job.finished_at is None
            or (runs is not None and job.run_id not in runs)
        ):
            continue
        if all(asked.get(name) == getattr(request, name) for name in _SAME_KIND):
            past.append((job.prompt_bytes, job.finished_at - job.started_at))
    return scaled(past, prompt_bytes)


def preparation_estimate(queue: JobQueue, request: ProfileRequest | CalibrateRequest) -> Estimate | None:
    """The same for measuring a profile or calibrating this model; None where none has run. Errors: StoreError."""
    past = []
    for job in queue.jobs(["done"]):
        if job.kind != request.kind or job.started_at is None or job.finished_at is None:
            continue
        asked = type(request).from_json(job.request_json)
        if asked.model == request.model and _alike(asked, request):
            past.append((_work(asked), job.finished_at - job.started_at))
    return scaled(past, _work(request))


def _alike(one: ProfileRequest | CalibrateRequest, other: ProfileRequest | CalibrateRequest) -> bool:
    return not isinstance(one, ProfileRequest) or (
        isinstance(other, ProfileRequest) and one.quick == other.quick
    )


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
