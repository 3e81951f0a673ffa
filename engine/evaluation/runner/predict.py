"""Stage two: every method on every prompt. Routing sees the prompt alone; decoding is dense.

The gold answer runs as a second, dense chunk behind the prompt, which gives its log-likelihood and, along it, the
greedy choices; from the first choice that differs on, decoding goes on greedily. That equals decoding token by token
(a test compares). Of PG-19 every token's loss is kept instead, from the prefill's own hidden states.

``predictions.jsonl`` only grows: what it holds already, by configuration and prompt, is skipped, so the same command
goes on where it was cut off; a failed line is tried again.
"""

from __future__ import annotations

import functools
import time
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any

import torch

from routesparse.engine.crew.crews import ONE, Processes
from routesparse.engine.crew.share import failures, share
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.device.broken import broken_device
from routesparse.engine.device.names import device_name
from routesparse.engine.errors import RouteSparseError
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.runner.asked import check_lengths, config_hash, label, prompt_of
from routesparse.engine.evaluation.runner.job import Job
from routesparse.engine.evaluation.runner.predictions import finished, key
from routesparse.engine.evaluation.runner.prepare import Prepared, all_prepared
from routesparse.engine.evaluation.studies.selection import methods, prompts, rows
from routesparse.engine.evaluation.suites import pg19
from routesparse.engine.evaluation.suites.registry import find
from routesparse.engine.evaluation.suites.suite import Suite
from routesparse.engine.models.load import load_in_turn

if TYPE_CHECKING:
    from routesparse.engine.evaluation.studies.selection.measure import Bench
    from routesparse.engine.models.load import LoadedModel

Cell = tuple[Prepared, tuple[str, float]]  # one prompt by one method and setting
Row = dict[str, Any]


def predict(job: Job, bench: type[Bench], processes: Processes = ONE, limit_s: float = float("inf")) -> None:
    """Fill the job's predictions; GPUs in turn. Starts nothing after ``limit_s``.

    bench: the class, made by each process for its own model.
    Errors: InputError for prompts that are not prepared or too long; RouteSparseError where a process ended over a
    prediction again and again, when the others are done.
    """
    deadline = time.time() + limit_s
    prompts_of_job = all_prepared(job)  # what is missing is told before a model is loaded
    done = frozenset(key(row) for row in finished(job))
    opened = functools.partial(_opened, job, bench, _longest(prompts_of_job), done)
    # Of all prompts every method's first setting before the second ones, and methods in turn on one prompt.
    lots = [
        [
            Piece(f"{name}={setting:g} {prepared.sample_id}", (prepared, (name, setting)))
            for name, setting in turn
        ]
        for turn in methods.rounds(["dense", *job.methods])
        for prepared in prompts_of_job
    ]
    crew, count = processes.crew(opened)
    with rows.Appender(job.predictions) as out:

        def keep(piece: Piece, row: Row | None) -> None:
            if row is not None:
                out.write({**row, "processes": count})

        outcome = share(Work("predict", opened, lots, keep), crew, count, study.note, deadline)
    if outcome.failed:
        raise RouteSparseError(f"{failures(outcome, 'predictions')}; the same command tries again")


def _longest(prompts_of_job: Sequence[Prepared]) -> list[Prepared]:
    return sorted(prompts_of_job, key=lambda one: one.tokens + one.example.new_tokens)[-1:]


def _opened(
    job: Job, kind: type[Bench], longest: list[Prepared], done: frozenset[Any], place: int
) -> Callable[[Cell], Row | None]:
    """A process's own model and methods. Errors: InputError for a prompt that the model can't read."""
    loaded = load_in_turn(job.model, place)
    check_lengths(longest, loaded)
    return _Predicting(job, kind(loaded, extras=job.extras), loaded, done)


class _Predicting:
    """Does one cell; None where it is done already, or its method can't be made."""

    def __init__(self, job: Job, bench: Bench, loaded: LoadedModel, done: frozenset[Any]) -> None:
        self._job, self._bench, self._loaded, self._done = job, bench, loaded, done
        wanted = ["dense", *job.methods]
        usable = methods.usable(wanted, bench.searched_for(wanted, job.lengths, job.data))
        self._methods = {(one.name, one.setting): one for turn in usable for one in turn}
        self._device = device_name(torch.device(loaded.device))
        self._prompt: tuple[str, prompts.Prompt] | None = None

    def __call__(self, cell: Cell) -> Row | None:
        prepared, named = cell
        method = self._methods.get(named)
        if method is None:
            return None
        code = config_hash(method, self._loaded, self._job.extras, self._bench.segment_tokens)
        if (code, prepared.sample_id, self._job.seed) in self._done:
            return None
        numbers = _measured(self._bench, find(self._job.suite), method, prepared, self._tokenized(prepared))
        return {**label(self._job, method, prepared, code), "device": self._device, **numbers}

    def _tokenized(self, prepared: Prepared) -> prompts.Prompt:
        """Kept for the next method, since tokenizing takes as long as a prefill."""
        if self._prompt is None or self._prompt[0] != prepared.sample_id:
            self._prompt = prepared.sample_id, prompt_of(self._job, prepared, self._loaded)
        return self._prompt[1]


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
    except Exception as error:
        if broken_device() is not None:
            raise
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
