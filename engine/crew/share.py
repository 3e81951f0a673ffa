"""Hands pieces of work to a crew until all are done: each result is kept once, however often a process ends.

A piece is asked of one process at a time, and of another one only when the first is gone, whose answers nobody reads
any more. So a result is kept once, what was kept is never done again, and what a lost process was doing is done
elsewhere.
"""

from __future__ import annotations

import signal
import threading
import time
from collections import Counter, deque
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from typing import Any

from routesparse.engine.crew.work import Answer, Crew, Done, Failed, Lost, Opened, Piece, Refused, Work
from routesparse.engine.errors import RouteSparseError

# Processes that one piece may cost, or that may end in a row in one place before they have begun.
MOST_LOSSES = 3
SHOWN_EVERY_S = 5.0
Say = Callable[[str], None]


@dataclass
class Outcome:
    """What became of the pieces. failed: why, by name; left: not begun when the time was up."""

    done: int = 0
    failed: dict[str, str] = field(default_factory=dict)
    left: int = 0


def share(work: Work, crew: Crew, processes: int, say: Say, deadline: float = float("inf")) -> Outcome:
    """Do all the work by so many processes; starts no piece after ``deadline``, a time of ``time.time``.

    Errors: those of ``Team.do``; ``crew`` is closed either way.
    """
    with Team(crew, processes, say, deadline) as team:
        return team.do(work)


class Team:
    """Processes that stay for several works, one after another, and end with the block."""

    def __init__(self, crew: Crew, processes: int, say: Say, deadline: float = float("inf")) -> None:
        self._crew, self._processes, self._say, self._deadline = crew, processes, say, deadline
        self._started: set[int] = set()
        self._idle: list[int] = []
        self._lost_at_once: Counter[int] = Counter()  # by place: in a row, ended before they had begun
        self._given_up: set[int] = set()  # places
        self._began = False  # one of them could

    def __enter__(self) -> Team:
        return self

    def __exit__(self, *_: object) -> None:
        self._crew.close()

    def do(self, work: Work) -> Outcome:
        """Do all of it. What had been done when Ctrl-C came is kept.

        Errors: what ``work.opened`` raised; RouteSparseError where no process could begin; of a whole work what its
        first failed piece raised.
        """
        self._work = work
        self._waiting = deque(deque(lot) for lot in work.lots if lot)
        self._busy: dict[int, deque[Piece]] = {}  # the first piece is being done
        self._losses: Counter[str] = Counter()
        self._outcome = Outcome()
        self._shown = _TimeLeft(work.stage, sum(map(len, self._waiting)), self._say)
        try:
            self._run()
        except KeyboardInterrupt:
            while (found := self._crew.arrived()) is not None:
                place, answer = found
                if isinstance(answer, Done) and place in self._busy:
                    self._keep(self._busy[place][0], answer)
            raise
        self._outcome.left = sum(map(len, self._waiting))
        # Of a whole work its caller says what else is left.
        if self._outcome.left and not work.whole:
            self._say(f"out of time with {self._outcome.left} left; the same command goes on from here")
        return self._outcome

    def _run(self) -> None:
        if self._idle:
            self._shown.begin()
        for place in range(min(self._processes, len(self._waiting))):
            if place not in self._started | self._given_up:
                self._start(place)
        self._hand_out()
        while self._waiting or self._busy:
            if not self._busy and self._late():
                break
            self._take(*self._crew.answer())
            self._hand_out()

    def _start(self, place: int) -> None:
        self._started.add(place)
        self._crew.start(place)

    def _take(self, place: int, answer: Answer) -> None:
        if isinstance(answer, Refused):
            # Where another one could begin, this one's GPU or node may be at fault.
            if not self._began:
                raise answer.error
            self._lose(place, str(answer.error))
        elif isinstance(answer, Lost):
            self._lose(place, answer.why)
        elif isinstance(answer, Opened):
            del self._lost_at_once[place]
            self._began = True
            self._shown.begin()
            self._idle.append(place)
        else:
            self._end(place, answer)

    def _end(self, place: int, answer: Done | Failed) -> None:
        lot = self._busy[place]
        piece = lot[0]
        if isinstance(answer, Done):
            self._keep(piece, answer)
            self._shown(piece, already=answer.found is None)
        elif self._work.whole:
            raise answer.error or RouteSparseError(f"{piece.name} failed: {answer.why}")
        else:
            self._fail(piece, answer.why)
        del self._busy[place]
        lot.popleft()
        # First in the row, so that this process goes on with it.
        if lot:
            self._waiting.appendleft(lot)
        self._idle.append(place)

    def _keep(self, piece: Piece, answer: Done) -> None:
        with _undisturbed():
            self._work.keep(piece, answer.found)
            self._outcome.done += answer.found is not None

    def _lose(self, place: int, why: str) -> None:
        """Its lot goes to the next process, and another process takes its place."""
        lot = self._busy.pop(place, None)
        if place in self._idle:
            self._idle.remove(place)
        elif lot is None:
            self._lost_at_once[place] += 1
            if self._lost_at_once[place] >= MOST_LOSSES:
                self._give_up(place, why)
                return
        else:
            self._lose_piece(place, lot, why)
        self._started.discard(place)
        if self._waiting:
            self._start(place)

    def _give_up(self, place: int, why: str) -> None:
        """Start nothing more in a place. Errors: RouteSparseError where no other one is left."""
        told = f"{MOST_LOSSES} processes in a row ended before they had begun: {why}"
        if self._started == {place}:
            raise RouteSparseError(told)
        self._say(f"process {place} is given up, the others go on: {told}")
        self._started.discard(place)
        self._given_up.add(place)

    def _lose_piece(self, place: int, lot: deque[Piece], why: str) -> None:
        piece = lot[0]
        self._losses[piece.name] += 1
        if self._losses[piece.name] >= MOST_LOSSES:
            why = f"{MOST_LOSSES} processes ended over it: {why}"
            if self._work.whole:
                raise RouteSparseError(f"{piece.name} failed: {why}")
            lot.popleft()
            self._fail(piece, why)
        else:
            self._say(f"process {place} ended ({why}); {piece.name} is done again by another one")
        if lot:
            self._waiting.appendleft(lot)

    def _fail(self, piece: Piece, why: str) -> None:
        self._outcome.failed[piece.name] = why
        self._say(f"{piece.name} failed: {why}")
        self._shown(piece, already=False)

    def _hand_out(self) -> None:
        while self._waiting and self._idle and not self._late():
            place, lot = self._idle.pop(), self._waiting.popleft()
            self._busy[place] = lot
            self._crew.ask(place, lot[0].given)

    def _late(self) -> bool:
        return time.time() > self._deadline


@contextmanager
def _undisturbed() -> Iterator[None]:
    """Ctrl-C inside the block takes effect behind it."""
    if threading.current_thread() is not threading.main_thread():
        yield  # Python hands signals to the main thread alone
        return
    came: list[int] = []

    def wait(number: int, _frame: Any) -> None:
        came.append(number)

    before = signal.signal(signal.SIGINT, wait)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, signal.SIG_DFL if before is None else before)
    if came:
        raise KeyboardInterrupt


class _TimeLeft:
    """A line of progress, at most one in some seconds, and the last. Pieces that were done before cost no time."""

    def __init__(self, stage: str, total: int, say: Say) -> None:
        self._stage, self._total, self._say = stage, total, say
        self._done = 0
        self._started: float | None = None
        self._shown = time.monotonic()

    def begin(self) -> None:
        """The first process can take pieces: loading is no part of what a piece takes."""
        if self._started is None:
            self._started = time.monotonic()

    def __call__(self, piece: Piece, already: bool) -> None:
        if already:
            self._total -= 1
            return
        self._done += 1
        now = time.monotonic()
        if now - self._shown < SHOWN_EVERY_S and self._done < self._total:
            return
        self._shown = now
        assert self._started is not None
        left_s = (now - self._started) / self._done * (self._total - self._done)
        self._say(f"{self._stage} {self._done}/{self._total}, about {left_s / 60:.1f} min left: {piece.name}")


def failures(outcome: Outcome, of: str) -> str:
    """What failed, in one line."""
    name, why = next(iter(outcome.failed.items()))
    more = f", and {len(outcome.failed) - 1} more {of}" if len(outcome.failed) > 1 else ""
    return f"{name} failed: {why}{more}"
