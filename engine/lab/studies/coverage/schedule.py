"""Which planned window a free process of the trust study takes next.

In the plan's order; CPUs leave long windows for last and GPUs short ones. A window that fails on one kind of device
goes to the other. Twins are measured once on each kind, before the rest.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from routesparse.engine.lab.studies.coverage.plan import Planned

NOT_STARTED = "not started: the time was up"
NOT_FINISHED = "not finished: the time was up"


@dataclass
class _Entry:
    task: Planned
    kinds: set[str]  # of device that may still try it
    reason: str = NOT_STARTED


@dataclass
class Schedule:
    """kinds: of device that there are, "cpu" and "cuda". twins: how many windows both measure."""

    planned: Sequence[Planned]
    kinds: Sequence[str]
    long_tokens: int
    twins: int = 0
    measured: int = 0
    _waiting: list[_Entry] = field(default_factory=list)
    _running: list[_Entry] = field(default_factory=list)
    _failed: list[_Entry] = field(default_factory=list)

    def __post_init__(self) -> None:
        count = min(self.twins, len(self.planned)) if len(self.kinds) > 1 else 0
        chosen = [self.planned[i * len(self.planned) // count] for i in range(count)]
        self._waiting = [_Entry(replace(task, part="twin"), {kind}) for task in chosen for kind in self.kinds]
        self._waiting += [_Entry(task, set(self.kinds)) for task in self.planned]

    def take(self, kind: str) -> Planned | None:
        """The next window for a device of this kind; None where none is left for it."""
        mine = [entry for entry in self._waiting if kind in entry.kinds]
        if not mine:
            return None
        liked = (
            e
            for e in mine
            if e.task.part == "twin" or (e.task.window.tokens > self.long_tokens) == (kind == "cuda")
        )
        entry = next(liked, mine[0])
        self._waiting.remove(entry)
        entry.reason = NOT_FINISHED
        self._running.append(entry)
        return entry.task

    def done(self, task: Planned) -> None:
        """A window has been measured."""
        self._running.remove(self._entry(task))
        self.measured += 1

    def failed(self, task: Planned, kind: str, reason: str) -> None:
        """A window could not be measured on this kind of device: another kind may try."""
        entry = self._entry(task)
        self._running.remove(entry)
        entry.kinds.discard(kind)
        entry.reason = reason
        if entry.kinds:
            self._waiting.insert(0, entry)
        else:
            self._failed.append(entry)

    def left(self) -> list[dict[str, Any]]:
        """Every window that was not measured, and why."""
        return [
            {**entry.task.facts, "reason": entry.reason}
            for entry in (*self._failed, *self._running, *self._waiting)
        ]

    def _entry(self, task: Planned) -> _Entry:
        return next(entry for entry in self._running if entry.task is task)
