"""What a job will take, before it runs: tokens, time, memory, the least time limit, and whether it will be routed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from routesparse.app.shell import jobs_view
from routesparse.app.shell.access import Access
from routesparse.app.shell.model_checks import loaded_profile
from routesparse.app.ui import numbers
from routesparse.app.ui.states import wrong
from routesparse.engine.errors import InputError
from routesparse.engine.jobs.estimate import Estimate, job_estimate, scaled
from routesparse.engine.jobs.job import Job
from routesparse.engine.jobs.presence import Device
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.token_count import PromptSize, prompt_size
from routesparse.engine.profiles.files import stored_for
from routesparse.engine.profiles.limits import LeastLimit, least_limit
from routesparse.engine.store import queries


@dataclass(frozen=True)
class Outlook:
    """As the stored profiles predict it; None where none is stored. problem: a profile that can't be read."""

    break_even: int | None = None
    device: str | None = None  # whose profile said so; None: the request itself
    predicted: int | None = None  # the break-even by a profile, whatever the request says
    least: tuple[LeastLimit, ...] = ()  # by each stored profile of such a device
    profiled: bool = True
    problem: str | None = None

    def routes(self, tokens: int) -> bool:
        """Whether the prompt is expected to be routed, and not to run dense untouched."""
        return self.break_even is None or tokens >= self.break_even


def live_devices(opened: Access) -> list[Device]:
    """Of the live workers, as far as they have said. Errors: StoreError."""
    return [worker.device for worker in jobs_view.live_workers(opened.queue) if worker.device is not None]


def outlook(request: RunRequest, size: PromptSize, devices: Sequence[Device]) -> Outlook:
    """What the stored profiles say about this prompt: those of the live workers' devices, where these are known."""
    stored = stored_for(size.head_dim, request.config())
    found, problem = [], None
    for file in stored:
        changed_ns = file.stat().st_mtime_ns
        try:
            profile = loaded_profile(file, changed_ns)
            if not devices or any(
                (profile.device, profile.dtype) == (one.name, one.dtype) for one in devices
            ):
                found.append((profile, file, changed_ns))
        except InputError as error:
            problem = (
                problem
                or f"{wrong(error)}; it is not used, and where no other fits, the job measures this machine first."
            )
    break_even, device, predicted = request.break_even, None, None
    if found:
        profile, path, changed_ns = found[0]
        predicted = _break_even(path, changed_ns, size.heads, size.layers)
        if break_even is None:
            break_even, device = predicted, profile.device
    limits = (
        least_limit(profile, size.tokens, size.heads, request.config(on_gpu=profile.backend != "torch"))
        for profile, *_ in found
    )
    return Outlook(break_even, device, predicted, tuple(limits), bool(found or problem), problem)


def time(
    opened: Access,
    requests: Sequence[RunRequest],
    works: Sequence[tuple[int, int, bool]],
    devices: Sequence[Device],
) -> tuple[str, str]:
    """An estimate of all requests one after another, and where it comes from: jobs and runs of this model on one
    device, equally audited and routed. The requests differ in settings that past jobs are not told apart by.

    works: of each prompt its bytes, its tokens, and whether it is expected to be routed.
    """
    request, count = requests[0], len(requests)
    alike = {routed: _alike(opened, request, routed, devices) for *_, routed in works}
    past = [job_estimate(opened.queue, request, n, set(alike[routed]["run_id"])) for n, _, routed in works]
    if jobs := [one for one in past if one is not None]:
        source = f"An estimate, from {numbers.several(jobs[0].jobs, 'earlier job')} like this on this device."
        return _span(past, count), source
    pairs = {
        routed: [(int(n), ms / 1000) for n, ms in zip(runs["tokens"], runs["total_ms"], strict=True)]
        for routed, runs in alike.items()
    }
    prefills = [scaled(pairs[routed], tokens) for _, tokens, routed in works]
    if known := [one for one in prefills if one is not None]:
        device = next(runs["device"].iloc[0] for runs in alike.values() if len(runs))
        return (
            f"{_span(prefills, count)} + loading",
            f"An estimate: prefill of {numbers.several(known[0].jobs, 'stored run')} like this on "
            f"{numbers.device(device)}; loading and audit come on top.",
        )
    return (
        "no estimate yet",
        "None like this, of this model and audit, has run on this device: analyse it, or first a short part, "
        "and the next ones have an estimate.",
    )


def of_job(opened: Access, request: RunRequest, job: Job) -> Estimate | None:
    """As ``time`` has it, of a job that waits or runs. Errors: InputError where it can only fail; StoreError."""
    devices = live_devices(opened)
    size = prompt_size(request.model, opened.queue.prompts.read(job.id).decode(), request.scaling)
    alike = _alike(opened, request, outlook(request, size, devices).routes(size.tokens), devices)
    return job_estimate(opened.queue, request, job.prompt_bytes, set(alike["run_id"]))


def _span(estimates: Sequence[Estimate | None], count: int) -> str:
    """All of them one after another, ``count`` times; more than that where some are unknown."""
    known = [one for one in estimates if one is not None]
    told = numbers.span(count * sum(one.low_s for one in known), count * sum(one.high_s for one in known))
    return told if len(known) == len(estimates) else f"more than {told}"


def _alike(opened: Access, request: RunRequest, routed: bool, devices: Sequence[Device]) -> pd.DataFrame:
    """Stored runs of this model and audit, routed or not as expected, on the live workers' device of the newest one;
    where no worker says its device, on that of the newest."""
    runs = queries.runs(opened.store, queries.RunFilter(models=(Path(request.model).name,)))
    here = runs[~runs["is_sample"]]
    if devices:
        here = here[here["device"].isin([device.name for device in devices])]
    if here.empty:
        return here
    same = (here["device"] == here["device"].iloc[0]) & (here["audit_depth"] == request.audit)
    return here[same & (here["routed"] == routed)]


@cache
def _break_even(profile: Path, changed_ns: int, heads: int, layers: int) -> int:
    """Tokens; looking for them takes a moment."""
    return loaded_profile(profile, changed_ns).break_even_tokens(heads, layers)
