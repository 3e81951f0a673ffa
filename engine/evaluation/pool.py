"""Several processes on this machine that share a study's prompts, GPUs in turn."""

from __future__ import annotations

import multiprocessing
from collections.abc import Callable
from typing import Any

import torch

from routesparse.engine.models.load import LoadedModel, load_model


def run(work: Callable[..., None], processes: int, shared: tuple[Any, ...]) -> list[int | None]:
    """Call ``work(place, *shared)`` in so many new processes, place from 0 on, and wait for their exit codes."""
    context = multiprocessing.get_context("spawn")
    started = [context.Process(target=work, args=(place, *shared)) for place in range(processes)]
    for process in started:
        process.start()
    for process in started:
        process.join()
    return [process.exitcode for process in started]


def spread(work: Callable[..., None], processes: int, shared: tuple[Any, ...]) -> None:
    """``run``, or with one process the same call in this one. Errors: SystemExit where a process ended badly."""
    if processes == 1:
        work(0, *shared)
        return
    codes = run(work, processes, shared)
    if any(codes):
        raise SystemExit(f"processes ended with {codes}")


def load_in_turn(model: str, place: int) -> LoadedModel:
    """The model of a process, on its GPU, or where there is none on the CPU. Errors: ModelError."""
    device = "auto"
    if torch.cuda.is_available():
        device = f"cuda:{place % torch.cuda.device_count()}"
        torch.cuda.set_device(device)
    return load_model(model, device=device)
