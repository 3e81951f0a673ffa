"""What studies of needles in rounds share: arguments, texts, the order of prompts, and processes that answer them."""

from __future__ import annotations

import argparse
import multiprocessing
import time
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import Future, ProcessPoolExecutor, as_completed
from dataclasses import dataclass
from itertools import product
from typing import TypeVar

from routesparse.engine.config import RouterConfig

SLACK = 8  # tokens past the gold answer's length that may still bring a gold string


@dataclass(frozen=True)
class Prompt:
    """One prompt, and what all processes know."""

    task: str
    tokens: int
    index: int
    haystack: str
    model: str
    config: RouterConfig
    deadline: float  # no prompt is started after it


P = TypeVar("P", bound=Prompt)
R = TypeVar("R")


def add_arguments(
    parser: argparse.ArgumentParser, *, lengths: Sequence[int], prompts: int, tasks: Sequence[str]
) -> None:
    """The arguments that ``in_rounds`` reads, with these defaults, and --processes."""
    parser.add_argument("--lengths", type=int, nargs="+", default=list(lengths))
    parser.add_argument(
        "--prompts", type=int, default=prompts, help="per task and length, with those before --first"
    )
    parser.add_argument(
        "--first", type=int, default=0, help="prompts that another run of this seed has answered"
    )
    parser.add_argument("--tasks", nargs="+", default=list(tasks))
    parser.add_argument("--processes", type=int, default=1, help="prompts answered at a time, on one GPU")
    parser.add_argument("--limit-s", type=float, default=float("inf"), help="start no prompt after it")


def texts(parser: argparse.ArgumentParser, arguments: argparse.Namespace) -> list[str]:
    """The books that needles lie in. Where there are none the parser ends the command and says so."""
    folder = arguments.data / "prose" / "test"
    found = [path.read_text() for path in sorted(folder.glob("*.txt"))]
    if not found:
        parser.error(f"{folder} holds no *.txt; pass a folder of texts with --data")
    return found


def in_rounds(arguments: argparse.Namespace, config: RouterConfig, haystacks: list[str]) -> Iterator[Prompt]:
    """Prompts outermost, so that a run cut short has some of every cell."""
    deadline = time.time() + arguments.limit_s
    for index, tokens, task in product(
        range(arguments.first, arguments.prompts), arguments.lengths, arguments.tasks
    ):
        haystack = haystacks[index % len(haystacks)]
        yield Prompt(task, tokens, index, haystack, arguments.model, config, deadline)


def as_answered(
    prompts: Sequence[P], answer: Callable[[P], R | None], processes: int
) -> Iterator[tuple[P, R]]:
    """Each prompt with its result, as they end; not those of None, whose time was up."""
    with ProcessPoolExecutor(processes, multiprocessing.get_context("spawn")) as pool:
        started: dict[Future[R | None], P] = {pool.submit(answer, prompt): prompt for prompt in prompts}
        for done in as_completed(started):
            result = done.result()
            if result is not None:
                yield started[done], result
