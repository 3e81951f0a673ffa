"""One step of a vLLM engine, which computes one batch: what its attention backend has to know and is not told.

vLLM tells a backend how long rows are, not whose: requests, prompts and their ends are known to the model runner. So
``follow`` wraps its ``execute_model``. The step is current while that runs, in the engine's own thread. ``at_start``
gives a runner its Requests, without which it is left to vLLM. vLLM has two model runners, and either is followed.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Sequence
from contextvars import ContextVar
from typing import TYPE_CHECKING, Any

from routesparse.engine.runtime.vllm.batch import Row, rows_of

if TYPE_CHECKING:
    from routesparse.engine.runtime.vllm.requests import Requests

_ATTRIBUTE = "_routesparse_requests"  # of a model runner
_HEARD = "_routesparse_heard"  # of a model
_current: ContextVar[Step | None] = ContextVar("routesparse_vllm_step", default=None)


class Step:
    """One batch of one model runner."""

    def __init__(self, requests: Requests, runner: Any, scheduled: Any) -> None:
        self.requests = requests
        self.routed: tuple[Row, ...] = ()
        self.table: Any = None  # the block table [rows, pages], once vLLM has built the batch's metadata
        # vLLM's InputBatch, in the order of the rows; the second model runner makes it as the step goes.
        self.batch: Any = getattr(runner, "input_batch", None)
        self._scheduled = scheduled
        self._rows: tuple[Row, ...] | None = None

    def rows(self, starts: Sequence[int]) -> tuple[Row, ...]:
        """The batch's rows; the first call chooses those that are routed.

        starts: int [rows + 1], as vLLM has them; a captured graph's batch has empty rows behind the others.
        Errors: RuntimeError where vLLM's batch is not in the order that its runner lists.
        """
        if self._rows is None:
            listed, known = self.batch, self.requests.known
            second = hasattr(listed, "num_computed_tokens_np")
            computed = listed.num_computed_tokens_np if second else listed.num_computed_tokens_cpu
            self._rows = rows_of(
                listed.req_ids,
                self._scheduled.num_scheduled_tokens,
                computed,
                {request: len(known[request].prompt_token_ids) for request in listed.req_ids},
            )
            self.routed = self.requests.choose(
                self._rows,
                lambda r: (known[r].prompt_token_ids, getattr(known[r].sampling_params, "extra_args", None)),
            )
        count, end = len(self._rows), self._rows[-1].place.stop
        if [row.first for row in self._rows] != list(starts[:count]) or {*starts[count:]} != {end}:
            raise RuntimeError(f"vLLM's batch begins its rows at {starts}, its runner lists {self._rows}")
        return self._rows

    def ran(self, hidden: Any) -> None:
        """The model's forward pass ended with hidden states [tokens, width]."""
        self.requests.ran(self._rows or (), hidden)

    def finish(self) -> None:
        self.requests.finish(self._rows or (), self.table)


def current() -> Step | None:
    """The step that is being computed; None in warm-up runs, which serve no request."""
    return _current.get()


def follow(runner_class: Any) -> None:
    """Make every step of these model runners known; once, however often it is called."""

    def followed(stock: Any) -> Any:
        def execute_model(self: Any, scheduler_output: Any, *rest: Any, **named: Any) -> Any:
            requests: Requests | None = getattr(self, _ATTRIBUTE, None)
            if requests is None or named.get("dummy_run"):
                return stock(self, scheduler_output, *rest, **named)
            requests.forget(scheduler_output.finished_req_ids)
            requests.known |= {new.req_id: new for new in scheduler_output.scheduled_new_reqs}
            requests.catch_up(scheduler_output.num_scheduled_tokens)
            step = Step(requests, self, scheduler_output)
            token = _current.set(step)
            try:
                result = stock(self, scheduler_output, *rest, **named)
            finally:
                _current.reset(token)
            step.finish()
            return result

        return execute_model

    def listed(stock: Any) -> Any:
        def prepare_inputs(self: Any, *given: Any, **named: Any) -> Any:
            batch, step = stock(self, *given, **named), current()
            if step is not None:
                step.batch = batch
            return batch

        return prepare_inputs

    wrap(runner_class, "execute_model", followed)
    if hasattr(runner_class, "prepare_inputs"):  # the second model runner
        wrap(runner_class, "prepare_inputs", listed)


def hear(model: Any) -> None:
    """Let the current step know what each forward pass of a model ends with; once, however often it is called."""

    def tell(module: Any, arguments: Any, output: Any) -> None:
        step = current()
        if step is not None:
            step.ran(output[0] if isinstance(output, tuple) else output)

    if not hasattr(model, _HEARD):
        setattr(model, _HEARD, model.register_forward_hook(tell))


def at_start(worker_class: Any, requests_of: Callable[[Any], Requests | None]) -> None:
    """Make and follow a model runner's Requests as soon as it may serve; once, however often it is called.

    worker_class: vLLM's WorkerWrapperBase, which holds the worker of any device with either model runner.
    requests_of: None leaves the runner to vLLM.
    """

    def prepared(stock: Any) -> Any:
        def initialize_from_config(self: Any, *given: Any, **named: Any) -> None:
            stock(self, *given, **named)
            wrap(type(self.worker), "compile_or_warm_up_model", warmed)

        return initialize_from_config

    def warmed(stock: Any) -> Any:
        # Its warm-up runs batches of prompts that nobody sent.
        def compile_or_warm_up_model(self: Any, *given: Any, **named: Any) -> Any:
            result, runner = stock(self, *given, **named), self.model_runner
            setattr(runner, _ATTRIBUTE, requests_of(runner))
            follow(type(runner))
            return result

        return compile_or_warm_up_model

    wrap(worker_class, "initialize_from_config", prepared)


def wrap(
    owner: Any, name: str, made: Callable[[Any], Any], kind: Callable[[Any], Any] = lambda own: own
) -> None:
    """Put made(stock) in the place of a class's method, once. kind: what a class holds for it, such as staticmethod."""
    stock = getattr(owner, name)
    if not hasattr(stock, "routesparse"):
        own: Any = functools.wraps(stock)(made(stock))
        own.routesparse = True
        setattr(owner, name, kind(own))
