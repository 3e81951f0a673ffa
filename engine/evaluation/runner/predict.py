"""Stage two: every method on every prompt. Routing sees the prompt alone; decoding is dense.

The gold answer runs as a second, dense chunk behind the prompt, which gives its log-likelihood and, along it, the
greedy choices; from the first choice that differs on, decoding goes on greedily. That equals decoding token by token
(a test compares). Of PG-19 every token's loss is kept instead, from the prefill's own hidden states.

``predictions.jsonl`` only grows: what it holds already, by configuration and prompt, is skipped, so the same command
goes on where it was cut off; a failed line is tried again.
"""

from __future__ import annotations

import itertools
import time
from typing import TYPE_CHECKING, Any

import torch

from routesparse.engine.device.names import device_name
from routesparse.engine.evaluation import pool, study
from routesparse.engine.evaluation.runner.asked import check_lengths, config_hash, label, prompt_of
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.evaluation.runner.predictions import finished, key
from routesparse.engine.evaluation.runner.prepare import Prepared, all_prepared, check_prepared
from routesparse.engine.evaluation.studies.selection import methods, prompts, rows
from routesparse.engine.evaluation.suites import pg19
from routesparse.engine.evaluation.suites.registry import find
from routesparse.engine.evaluation.suites.suite import Suite

if TYPE_CHECKING:
    from routesparse.engine.evaluation.studies.selection.measure import Bench

SHOWN_EVERY_S = 5.0


def predict(job: Job, bench: type[Bench], processes: int = 1, limit_s: float = float("inf")) -> None:
    """Fill the job's predictions by ``processes`` on this machine; GPUs in turn. Starts nothing after ``limit_s``.

    bench: the class, made by each process for its own model.
    Errors: InputError for prompts that are not prepared or too long; RuntimeError where a process ended badly.
    """
    deadline = time.time() + limit_s
    check_prepared(job)  # what is missing is told before a model is loaded
    if processes == 1:
        work(0, 1, job, bench, deadline)
        return
    codes = pool.run(work, processes, (processes, job, bench, deadline))
    if any(codes):
        raise RuntimeError(f"processes ended with {codes}")


def work(place: int, processes: int, job: Job, kind: type[Bench], deadline: float) -> None:
    """One process's share of the prompts by every method."""
    loaded = pool.load_in_turn(job.model, place)
    bench = kind(loaded, extras=job.extras)
    wanted = ["dense", *job.methods]
    usable = methods.usable(wanted, bench.searched_for(wanted, job.lengths, job.data))
    mine = all_prepared(job)[place::processes]
    check_lengths(mine, loaded)
    done = {key(row) for row in finished(job)}
    todo = [
        (method, prepared, code)
        for settings, prepared in itertools.product(usable, mine)
        for method in settings
        if (
            (code := config_hash(method, loaded, job.extras, bench.segment_tokens)),
            prepared.sample_id,
            job.seed,
        )
        not in done
    ]
    path = rows.part(job.predictions, place) if processes > 1 else job.predictions
    shown = _TimeLeft(place, len(todo))
    device = device_name(torch.device(loaded.device))
    suite, number = find(job.suite), itertools.count(1)
    with rows.Appender(path) as out:
        # Methods take turns on one prompt, whose tokenizing takes as long as a prefill.
        for prepared, turns in itertools.groupby(todo, lambda turn: turn[1]):
            prompt = prompt_of(job, prepared, loaded)
            for method, _, code in turns:
                if time.time() > deadline:
                    study.note("out of time; the same command goes on from here")
                    return
                numbers = _measured(bench, suite, method, prepared, prompt)
                out.write({**label(job, method, prepared, code), "device": device, **numbers})
                shown(next(number), method, prepared)


def _measured(
    bench: Bench, suite: Suite, method: methods.Method, prepared: Prepared, prompt: prompts.Prompt
) -> dict[str, Any]:
    """One prediction's numbers and its row in the suite's own format, or why there are none."""
    example = prepared.example
    try:
        if suite is pg19.SUITE:
            return _book(bench, method, prepared, prompt)
        text, numbers = bench.answer(prompt, method, example.new_tokens, past_gold=not suite.stops_at_gold)
        return {**numbers, "row": suite.row(example, text)}
    except Exception as error:  # noqa: BLE001 - a rule of any kind may fail in any way, and the others go on
        if torch.cuda.is_available():
            torch.cuda.empty_cache()
        return {"failed": f"{type(error).__name__}: {error}"[:500]}


def _book(bench: Bench, method: methods.Method, prepared: Prepared, prompt: prompts.Prompt) -> dict[str, Any]:
    """The sums that PG-19's measures need, of the tokens behind the first."""
    nats, numbers = bench.losses(prompt, method)
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


class _TimeLeft:
    """A line of progress on stderr, at most one in some seconds, and the last."""

    def __init__(self, place: int, total: int) -> None:
        self._place, self._total = place, total
        self._started = self._shown = time.monotonic()

    def __call__(self, done: int, method: methods.Method, prepared: Prepared) -> None:
        now = time.monotonic()
        if now - self._shown < SHOWN_EVERY_S and done < self._total:
            return
        self._shown = now
        left_s = (now - self._started) / done * (self._total - done)
        study.note(
            f"predict [{self._place}] {done}/{self._total}, about {left_s / 60:.1f} min left: "
            f"{method.name}={method.setting:g} {prepared.sample_id}"
        )
