"""Hands pieces of work to a crew until all are done: each result is kept once, however often a process ends.

A piece is asked of one process at a time, and of another one only when the first is gone, whose answers nobody reads
any more. So a result is kept once, what was kept is never done again, and what a lost process was doing is done
elsewhere.
"""

from __future__ import annotations

import time
from collections import Counter, deque
from collections.abc import Callable
from dataclasses import dataclass, field

from routesparse.engine.crew.work import Crew, Done, Failed, Lost, Opened, Piece, Refused, Work
from routesparse.engine.errors import RouteSparseError

MOST_LOSSES = 3  # processes that one piece may cost, or that may end in a row before they have begun
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

    Errors: what ``work.opened`` raised, RouteSparseError where no process could begin; ``crew`` is closed either way.
    """
    return _Shared(work, crew, say, deadline).run(processes)


class _Shared:
    def __init__(self, work: Work, crew: Crew, say: Say, deadline: float) -> None:
        self._work, self._crew, self._say, self._deadline = work, crew, say, deadline
        self._waiting = deque(deque(lot) for lot in work.lots if lot)
        self._busy: dict[int, deque[Piece]] = {}  # the first piece is being done
        self._idle: list[int] = []
        self._losses: Counter[str] = Counter()
        self._lost_at_once = 0  # processes in a row that ended before they had begun
        self._outcome = Outcome()
        self._shown = _TimeLeft(work.stage, sum(map(len, self._waiting)), say)

    def run(self, processes: int) -> Outcome:
        try:
            for place in range(min(processes, len(self._waiting))):
                self._crew.start(place)
            while self._waiting or self._busy:
                if not self._busy and self._late():
                    break
                place, answer = self._crew.answer()
                if isinstance(answer, Refused):
                    raise answer.error
                if isinstance(answer, Lost):
                    self._lose(place, answer.why)
                elif isinstance(answer, Opened):
                    self._lost_at_once = 0
                    self._shown.begin()
                    self._idle.append(place)
                else:
                    self._end(place, answer)
                self._hand_out()
        finally:
            self._crew.close()
        self._outcome.left = sum(map(len, self._waiting))
        if self._outcome.left:
            self._say("out of time; the same command goes on from here")
        return self._outcome

    def _end(self, place: int, answer: Done | Failed) -> None:
        lot = self._busy.pop(place)
        piece = lot.popleft()
        if isinstance(answer, Done):
            self._work.keep(piece, answer.found)
            self._outcome.done += answer.found is not None
            self._shown(piece, already=answer.found is None)
        else:
            self._fail(piece, answer.why)
        # First in the row, so that this process goes on with it.
        if lot:
            self._waiting.appendleft(lot)
        self._idle.append(place)

    def _lose(self, place: int, why: str) -> None:
        """Its lot goes to the next process, and another process takes its place."""
        lot = self._busy.pop(place, None)
        if place in self._idle:
            self._idle.remove(place)
        elif lot is None:
            self._lost_at_once += 1
            if self._lost_at_once >= MOST_LOSSES:
                raise RouteSparseError(f"{MOST_LOSSES} processes in a row ended before they had begun: {why}")
        else:
            piece = lot[0]
            self._losses[piece.name] += 1
            if self._losses[piece.name] >= MOST_LOSSES:
                lot.popleft()
                self._fail(piece, f"{MOST_LOSSES} processes ended over it: {why}")
            else:
                self._say(f"process {place} ended ({why}); {piece.name} is done again by another one")
            if lot:
                self._waiting.appendleft(lot)
        if self._waiting:
            self._crew.start(place)

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
