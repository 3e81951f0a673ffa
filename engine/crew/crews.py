"""Which processes a command works with: this one, several of this machine, or those of a Ray cluster (scale/)."""

from __future__ import annotations

import multiprocessing
import os
import signal
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from multiprocessing.connection import Connection, wait
from multiprocessing.process import BaseProcess
from typing import Any

from routesparse.engine.crew.work import Answer, Crew, Do, Lost, Member, Refused
from routesparse.engine.device.broken import broken_device
from routesparse.engine.errors import InputError, RouteSparseError
from routesparse.engine.terminal import escaped

_LAST_S = 10.0  # that a process has to end by itself


class Here:
    """One process: this one."""

    def __init__(self, opened: Callable[[int], Do]) -> None:
        self._opened, self._member = opened, Member()
        self._answers: deque[tuple[int, Answer]] = deque()

    def start(self, place: int) -> None:
        self._member = Member()
        self._answers.append((place, self._member.open(self._opened, place)))

    def ask(self, place: int, given: Any) -> None:
        """See ``Crew``. Errors: RouteSparseError where this process's GPU answers no more."""
        answer = self._member.do(given)
        # Opening the work again here would find the same broken GPU.
        if isinstance(answer, Lost) and broken_device() is not None:
            raise RouteSparseError(f"{answer.why}; give the same command again")
        self._answers.append((place, answer))

    def answer(self) -> tuple[int, Answer]:
        return self._answers.popleft()

    def arrived(self) -> tuple[int, Answer] | None:
        return self._answers.popleft() if self._answers else None

    def close(self) -> None:
        """Nothing to end."""


@dataclass(frozen=True)
class _Child:
    process: BaseProcess
    pipe: Connection


class Pool:
    """Several processes of this machine, each with its share of the cores."""

    def __init__(self, opened: Callable[[int], Do], processes: int) -> None:
        self._opened = opened
        self._threads = max(1, (os.cpu_count() or 1) // processes)
        self._context = multiprocessing.get_context("spawn")
        self._children: dict[int, _Child] = {}
        self._cut_off: set[int] = set()  # places whose answer Ctrl-C came into

    def start(self, place: int) -> None:
        ours, theirs = self._context.Pipe()
        process = self._context.Process(target=_serve, args=(theirs,), daemon=True)
        with _environment("OMP_NUM_THREADS", str(self._threads)):
            process.start()
        theirs.close()
        self._children[place] = _Child(process, ours)
        self._send(place, (self._opened, place))

    def ask(self, place: int, given: Any) -> None:
        self._send(place, given)

    def answer(self) -> tuple[int, Answer]:
        found = self._next(None)
        assert found is not None
        return found

    def arrived(self) -> tuple[int, Answer] | None:
        return self._next(0.0)

    def _next(self, wait_s: float | None) -> tuple[int, Answer] | None:
        places = {child.pipe: place for place, child in self._children.items() if place not in self._cut_off}
        ready = wait(list(places), wait_s)
        if not ready:
            return None
        pipe = ready[0]
        assert isinstance(pipe, Connection)
        place = places[pipe]
        try:
            answer: Answer = pipe.recv()
        except KeyboardInterrupt:
            # What is left of a message that was read in part would be taken for another one.
            self._cut_off.add(place)
            raise
        except (EOFError, ConnectionError):
            return place, Lost(f"exit code {self._end(place)}")
        if isinstance(answer, Lost | Refused):
            self._end(place)
        return place, answer

    def _end(self, place: int) -> int | None:
        """Let one process go; its exit code."""
        child = self._children.pop(place)
        self._cut_off.discard(place)
        child.pipe.close()
        # One that said itself that it is of no use is about to end, but may hang on a broken GPU.
        child.process.join(_LAST_S)
        child.process.kill()
        child.process.join()
        return child.process.exitcode

    def close(self) -> None:
        for child in self._children.values():
            child.process.kill()
        for child in self._children.values():
            child.process.join()
            child.pipe.close()
        self._children.clear()
        self._cut_off.clear()

    def _send(self, place: int, value: Any) -> None:
        try:
            self._children[place].pipe.send(value)
        except ConnectionError:
            return  # it has ended: ``answer`` meets the end of its pipe and says so


@contextmanager
def _environment(name: str, value: str) -> Iterator[None]:
    """A child takes it over at its start: before it imports the main module, which may load torch."""
    if name in os.environ:
        yield
        return
    os.environ[name] = value
    try:
        yield
    finally:
        del os.environ[name]


@escaped()
def _serve(pipe: Connection) -> None:
    """What a child does until its parent closes the pipe or ends."""
    # Ctrl-C goes to all processes of a terminal; the parent ends this one.
    signal.signal(signal.SIGINT, signal.SIG_IGN)
    member = Member()
    try:
        answer = member.open(*pipe.recv())
        pipe.send(answer)
        while not isinstance(answer, Lost | Refused):
            answer = member.do(pipe.recv())
            pipe.send(answer)
    except (EOFError, ConnectionError):
        return  # nobody is left to answer to


@dataclass(frozen=True)
class Processes:
    """count: None is one here, and on a cluster one for each GPU or node. ray: a cluster's address, None: this machine.

    Errors: InputError for no process at all.
    """

    count: int | None = None
    ray: str | None = None

    def __post_init__(self) -> None:
        if self.count is not None and self.count < 1:
            raise InputError(f"--processes {self.count} does nothing; pass at least 1")

    def crew(self, opened: Callable[[int], Do]) -> tuple[Crew, int]:
        """Those that will do the work, none of them started, and how many. Errors: InputError."""
        if self.ray is not None:
            from routesparse.engine.scale.cluster import Cluster

            cluster = Cluster(opened, self.ray, self.count)
            return cluster, cluster.processes
        count = self.count or 1
        return (Here(opened) if count == 1 else Pool(opened, count)), count


ONE = Processes()
