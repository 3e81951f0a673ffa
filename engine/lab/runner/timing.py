"""A stage of its own: how long each method's prefill takes, by one process that has its device to itself.

Several processes on one device wait for each other, so the times beside their predictions compare nothing; scores do
not mind. So scores may come from many processes, and times from this one, on the first ``PROMPTS`` prompts of each task
and length. Of a prompt every method runs once, which compiles what its length needs, and then all run in turn,
``REPEATS`` times: what slows the machine for a while slows them alike. The median of the repeats counts.

``times.jsonl`` only grows: what this commit has timed already, by configuration and prompt, is skipped.
"""

from __future__ import annotations

import statistics
import time
from collections import defaultdict
from collections.abc import Iterable
from typing import TYPE_CHECKING, Any

import torch

from routesparse.engine.calibrate.row_files import Appender
from routesparse.engine.device.names import device_name
from routesparse.engine.lab import study
from routesparse.engine.lab.runner.asked import check_lengths, config_hash, label, prompt_of
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.predictions import NUMBERS, key, timed
from routesparse.engine.lab.runner.prepare import Prepared, all_prepared
from routesparse.engine.lab.studies.selection import methods
from routesparse.engine.lab.studies.selection.measure import why_failed
from routesparse.engine.models.load import load_in_turn
from routesparse.engine.provenance import git_commit

if TYPE_CHECKING:
    from routesparse.engine.lab.studies.selection.measure import Bench
    from routesparse.engine.models.load import LoadedModel

PROMPTS, REPEATS = 2, 3
UNSTEADY = 0.1  # repeats further apart than this share of their median had company


def measure_times(job: Job, kind: type[Bench], limit_s: float = float("inf")) -> int:
    """Time what this commit has not timed yet, since times of two sittings compare nothing. Returns how many failed.

    limit_s: nothing is started after it.

    Errors: InputError for prompts that are not prepared or too long.
    """
    deadline = time.monotonic() + limit_s
    mine = [one for one in all_prepared(job) if one.example.index < PROMPTS]
    loaded = load_in_turn(job.model, 0)
    check_lengths(mine, loaded)
    bench = kind(loaded, extras=job.extras)
    usable = [
        (method, config_hash(method, loaded, job.extras, bench.segment_tokens))
        for method in bench.usable(["dense", *job.methods], job.lengths, job.data, job.out)
    ]
    done = {key(row) for row in timed(job) if row.get("git_commit") == git_commit()}
    spreads: list[float] = []
    with Appender(job.times) as out:
        for number, prepared in enumerate(mine):
            todo = [pair for pair in usable if (pair[1], prepared.sample_id, job.seed) not in done]
            if not todo:
                continue
            if time.monotonic() > deadline:
                study.note(f"out of time after {number} of {len(mine)}; the same command goes on from here")
                break
            for row in _timed(bench, job, loaded, prepared, todo):
                out.write(row)
                spreads += [row["spread"]] if "spread" in row else []
            study.note(f"time {number + 1}/{len(mine)}: {prepared.sample_id}")
    if spreads and statistics.median(spreads) > UNSTEADY:
        study.note(
            f"repeats of one prompt lie {statistics.median(spreads):.0%} apart (median): something else used this "
            f"machine; remove {job.times.name} and run the stage time alone"
        )
    return len(out.failed)


def _timed(
    bench: Bench, job: Job, loaded: LoadedModel, prepared: Prepared, todo: list[tuple[methods.Method, str]]
) -> Iterable[dict[str, Any]]:
    """A row for each method on one prompt: medians, the first run apart, and how far the repeats lie apart."""
    prompt = prompt_of(job, prepared, loaded)
    device = device_name(torch.device(loaded.device))
    runs: dict[str, list[dict[str, float]]] = defaultdict(list)
    failed: dict[str, str] = {}
    for _ in range(1 + REPEATS):
        for method, code in todo:
            if code in failed:
                continue
            try:
                runs[code].append(bench.timed(prompt, method))
            except Exception as error:  # noqa: BLE001 - a rule of any kind may fail in any way, and the others go on
                failed[code] = why_failed(error)
    for method, code in todo:
        known = {**label(job, method, prepared, code), "device": device}
        if code in failed:
            yield {**known, "failed": failed[code]}
            continue
        first, *warm = runs[code]
        medians = {name: statistics.median(run[name] for run in warm) for name in NUMBERS}
        taken = [run["prefill_ms"] for run in warm]
        yield {
            **known,
            **medians,
            "first_ms": first["prefill_ms"],
            "spread": (max(taken) - min(taken)) / medians["prefill_ms"],
        }
