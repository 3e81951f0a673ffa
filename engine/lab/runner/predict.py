"""Stage two: every method on every prompt. Routing sees the prompt alone; decoding is dense.

The gold answer runs as a second, dense chunk behind the prompt, which gives its log-likelihood and, along it, the
greedy choices; from the first choice that differs on, decoding goes on greedily, all methods of a prompt in one batch
(``studies/selection/together.py``). That equals decoding token by token (a test compares). Of PG-19 every token's loss
is kept instead, from the prefill's own hidden states.

A trial of each length comes first and says what the rest takes; with ``--screen`` a screen follows, and then the tasks
that tell (``steps.py``). ``predictions.jsonl`` only grows: what it holds already, by configuration and prompt, is
skipped, so the same command goes on where it was cut off; a failed line is tried again.
"""

from __future__ import annotations

import functools
import math
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from routesparse.engine.calibrate import one_profile
from routesparse.engine.calibrate.row_files import Appender
from routesparse.engine.crew.crews import ONE, Processes
from routesparse.engine.crew.share import Team, failures
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.device.names import device_name
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.lab import study
from routesparse.engine.lab.runner import steps
from routesparse.engine.lab.runner.asked import check_lengths, config_hash, label, prompt_of
from routesparse.engine.lab.runner.job import Job
from routesparse.engine.lab.runner.predictions import finished, key
from routesparse.engine.lab.runner.prepare import Prepared, all_prepared
from routesparse.engine.lab.studies.selection import methods, prompts
from routesparse.engine.lab.studies.selection.measure import Bench, probes_of, why_failed
from routesparse.engine.lab.suites import pg19
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.lab.suites.suite import Suite
from routesparse.engine.models.load import load_in_turn

if TYPE_CHECKING:
    from routesparse.engine.models.load import LoadedModel

Asking = tuple[Prepared, tuple[tuple[str, float], ...]]  # one prompt, by methods with their settings
Row = dict[str, Any]


def predict(
    job: Job,
    bench: type[Bench],
    processes: Processes = ONE,
    limit_s: float = float("inf"),
    *,
    estimate: bool = False,
) -> int:
    """Fill the job's predictions; GPUs in turn. Starts nothing after ``limit_s``. Returns how many failed.

    bench: the class, made by each process for its own model. estimate: the trial alone, which says what the rest takes.
    Errors: InputError for prompts that are not prepared or too long; RouteSparseError where a process ended over a
    prompt again and again, when the others are done.
    """
    deadline = time.time() + limit_s
    prompts_of_job = all_prepared(job)  # what is missing is told before a model is loaded
    done = frozenset(key(row) for row in finished(job))
    kind = functools.partial(bench, captured=(processes.count or 1) == 1)
    longest = sorted(prompts_of_job, key=lambda one: one.tokens + one.example.new_tokens)[-1:]
    opened = one_profile.opening(functools.partial(_opened, job, kind, longest, done))
    crew, count = processes.crew(opened)
    broken: list[str] = []
    tried: set[str] = set()
    with Appender(job.predictions) as out, Team(crew, count, study.note, deadline) as team:

        def keep(piece: Piece, made: list[Row] | None) -> None:
            for row in made or ():
                out.write({**row, "processes": count})

        first = one_profile.ask(team, opened)

        def run(stage: str, of: Sequence[Prepared]) -> None:
            lots = _lots(job, [one for one in of if one.sample_id not in tried])
            tried.update(one.sample_id for one in of)
            outcome = one_profile.do(team, Work(stage, opened, lots, keep), first)
            if outcome.failed:
                broken.append(failures(outcome, "prompts"))

        run("trial", steps.trial(job, prompts_of_job))
        if left := steps.cost(job, finished(job), prompts_of_job, count):
            study.note(left)
        if not estimate and job.screen:
            run("screen", [one for one in prompts_of_job if one.example.index < job.screen])
            found = steps.screened(job)
            study.note(steps.told(found))
            run("predict", steps.chosen(job, found, prompts_of_job))
        elif not estimate:
            run("predict", prompts_of_job)
    if broken:
        raise RouteSparseError(f"{'; '.join(broken)}; the same command tries again")
    return len(out.failed)


def _lots(job: Job, of: Sequence[Prepared]) -> list[list[Piece]]:
    """Of all prompts every method's first setting before the second ones; a prompt's methods of a turn together."""
    return [
        [Piece(prepared.sample_id, (prepared, tuple(turn)))]
        for turn in methods.rounds(["dense", *job.methods])
        for prepared in of
    ]


def _opened(
    job: Job, kind: Callable[..., Bench], longest: list[Prepared], done: frozenset[Any], place: int
) -> _Predicting:
    """A process's own model and methods. Errors: InputError for a prompt that the model can't read."""
    loaded = load_in_turn(job.model, place)
    check_lengths(longest, loaded)
    return _Predicting(job, kind(loaded, extras=job.extras), loaded, done)


class _Predicting:
    """Does one prompt by some methods; None where that is done already, or no method can be made."""

    def __init__(self, job: Job, bench: Bench, loaded: LoadedModel, done: frozenset[Any]) -> None:
        self._job, self.bench, self._loaded, self._done = job, bench, loaded, done
        self._methods = {
            (one.name, one.setting): (one, config_hash(one, loaded, job.extras, bench.segment_tokens))
            for one in bench.usable(["dense", *job.methods], job.lengths, job.data, job.out)
        }
        self.probes = probes_of(method for method, _ in self._methods.values())
        self.header = {
            "device": device_name(torch.device(loaded.device)),
            "weights": loaded.revision,
            "torch": torch.__version__,
        }

    def __call__(self, asking: Asking) -> list[Row] | None:
        prepared, named = asking
        missing = [
            (method, code)
            for method, code in (self._methods[name] for name in named if name in self._methods)
            if (code, prepared.sample_id, self._job.seed) not in self._done
        ]
        if not missing:
            return None
        prompt = prompt_of(self._job, prepared, self._loaded)
        started = time.perf_counter()
        found = measured(
            self.bench,
            find(self._job.suite),
            [method for method, _ in missing],
            prepared,
            prompt,
            self._job.decodes(prepared.example.index),
        )
        took = {"took_s": round((time.perf_counter() - started) / len(missing), 4)}
        return [
            {**label(self._job, method, prepared, code), **self.header, **took, **_finite(numbers)}
            for (method, code), numbers in zip(missing, found, strict=True)
        ]


def measured(
    bench: Bench,
    suite: Suite,
    chosen: Sequence[methods.Method],
    prepared: Prepared,
    prompt: prompts.Prompt,
    decode: bool = True,
) -> list[dict[str, Any]]:
    """Each prediction's numbers and, of a decoded answer, its row in the suite's own format, or why there are none."""
    example = prepared.example
    if suite is pg19.SUITE:
        return [_book(bench, method, prepared, prompt) for method in chosen]
    room = example.new_tokens if decode else 0
    found = bench.answers(prompt, chosen, room, past_gold=not suite.stops_at_gold)
    return [
        {"failed": one}
        if isinstance(one, str)
        else {**one[1], **({"row": suite.row(example, one[0])} if decode else {})}
        for one in found
    ]


def _finite(numbers: dict[str, Any]) -> dict[str, Any]:
    """A prediction's numbers; a method that computed NaN or Inf failed."""
    every = numbers | (numbers.get("row") or {})
    odd = [name for name, one in every.items() if isinstance(one, float) and not math.isfinite(one)]
    return {"failed": f"{', '.join(odd)} came out as NaN or Inf"} if odd else numbers


def _book(bench: Bench, method: methods.Method, prepared: Prepared, prompt: prompts.Prompt) -> dict[str, Any]:
    """The sums that PG-19's measures need, of the tokens behind the first; or why there are none."""
    try:
        nats, numbers = bench.losses(prompt, method)
    except Exception as error:  # noqa: BLE001
        return {"failed": why_failed(error)}
    last, text = nats[-pg19.LAST_TOKENS :].double(), prepared.example.prompt
    row = {
        "id": prepared.example.cluster,
        "nll": float(nats.double().sum()),
        "tokens": len(nats),
        "words": len(text.split()),
        "bytes": len(text.encode()),
        "last_nll": float(last.sum()),
        "last_tokens": len(last),
    }
    return {**numbers, "row": row}
