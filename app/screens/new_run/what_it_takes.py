"""What a job will take, before it runs: tokens, time, memory, the least time limit, and whether it will be routed."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path

import pandas as pd

from routesparse.app.shell.access import Access
from routesparse.app.shell.model_checks import loaded_profile
from routesparse.app.ui import numbers
from routesparse.app.ui.states import wrong
from routesparse.engine.errors import InputError
from routesparse.engine.jobs.estimate import job_estimate, scaled
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.token_count import PromptSize
from routesparse.engine.profiles.files import stored_for
from routesparse.engine.profiles.limits import LeastLimit, least_limit
from routesparse.engine.store import queries


@dataclass(frozen=True)
class Outlook:
    """As the stored profiles predict it; None where none is stored. problem: a profile that can't be read."""

    break_even: int | None = None
    device: str | None = None  # whose profile said so; None: the request itself
    least: tuple[LeastLimit, ...] = ()  # by each stored profile, this machine's own first
    profiled: bool = True
    problem: str | None = None

    def routes(self, tokens: int) -> bool:
        """Whether the prompt is expected to be routed, and not to run dense untouched."""
        return self.break_even is None or tokens >= self.break_even


def outlook(request: RunRequest, size: PromptSize) -> Outlook:
    """What the stored profiles say about this prompt."""
    stored = stored_for(size.head_dim, request.config())
    found, problem = [], None
    for file in stored:
        changed_ns = file.stat().st_mtime_ns
        try:
            found.append((loaded_profile(file, changed_ns), file, changed_ns))
        except InputError as error:
            problem = (
                problem
                or f"{wrong(error)}; it is not used, and where no other fits, the job measures this machine first."
            )
    break_even, device = request.break_even, None
    if break_even is None and found:
        profile, path, changed_ns = found[0]
        break_even, device = _break_even(path, changed_ns, size.heads, size.layers), profile.device
    limits = (
        least_limit(profile, size.tokens, size.heads, request.config(on_gpu=profile.backend != "torch"))
        for profile, *_ in found
    )
    return Outlook(break_even, device, tuple(limits), bool(stored), problem)


def time(
    opened: Access, requests: Sequence[RunRequest], prompt_bytes: int, tokens: int, routed: bool
) -> tuple[str, str]:
    """An estimate of all requests one after another, and where it comes from: jobs and runs of this model on one
    device, equally audited and routed. The requests differ in settings that past jobs are not told apart by."""
    request, count = requests[0], len(requests)
    runs = _alike(opened, request, routed)
    past = job_estimate(opened.queue, request, prompt_bytes, set(runs["run_id"]))
    if past is not None:
        source = f"An estimate, from {numbers.several(past.jobs, 'earlier job')} like this on this device."
        return numbers.span(count * past.low_s, count * past.high_s), source
    pairs = [(int(n), ms / 1000) for n, ms in zip(runs["tokens"], runs["total_ms"], strict=True)]
    prefill = scaled(pairs, tokens)
    if prefill is not None:
        return (
            f"{numbers.span(count * prefill.low_s, count * prefill.high_s)} + loading",
            f"An estimate: prefill of {numbers.several(prefill.jobs, 'stored run')} like this on "
            f"{numbers.device(runs['device'].iloc[0])}; loading and audit come on top.",
        )
    return (
        "no estimate yet",
        "No job with this model and audit has run on this device: the first one measures it.",
    )


def _alike(opened: Access, request: RunRequest, routed: bool) -> pd.DataFrame:
    """Stored runs of this model and audit, routed or not as expected, on the device of the newest one made here."""
    runs = queries.runs(opened.store, queries.RunFilter(models=(Path(request.model).name,)))
    here = runs[~runs["is_sample"]]
    if here.empty:
        return here
    same = (here["device"] == here["device"].iloc[0]) & (here["audit_depth"] == request.audit)
    return here[same & (here["routed"] == routed)]


@cache
def _break_even(profile: Path, changed_ns: int, heads: int, layers: int) -> int:
    """Tokens; looking for them takes a moment."""
    return loaded_profile(profile, changed_ns).break_even_tokens(heads, layers)
