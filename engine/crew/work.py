"""What is shared: one specification of a job, the same for this process, a local pool and a Ray cluster."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from routesparse.engine.device.broken import broken_device
from routesparse.engine.errors import (
    DiskFullError,
    OutOfMemoryError,
    RouteSparseError,
    disk_is_full,
    is_out_of_memory,
    shortened,
)

Do = Callable[[Any], Any]  # does one piece
WORN_AFTER = 3  # failures in a row, by a process that did pieces before: a new one may not have them


@dataclass(frozen=True)
class Piece:
    """The smallest part that is done, kept and, where its process ended, done again. given: what ``Do`` gets."""

    name: str
    given: Any


@dataclass(frozen=True)
class Work:
    """One job.

    opened: called once in each process, with its number from 0 on, and returns what does a piece; it is pickled by its
    module's name, as are pieces and what is returned for them.
    lots: pieces that one process does in a row while it lives, such as one prompt by several methods.
    keep: called here, once for every piece that was done; nothing else writes results. What it gets is None where the
    process found the piece done already. Ctrl-C waits until it has returned.
    whole: one piece that fails ends the work, since the others are worth nothing without it.
    """

    stage: str
    opened: Callable[[int], Do]
    lots: Sequence[Sequence[Piece]]
    keep: Callable[[Piece, Any], None]
    whole: bool = False


@dataclass(frozen=True)
class Opened:
    """The process can take pieces."""


@dataclass(frozen=True)
class Refused:
    """The process could not open the work: no other one can either."""

    error: RouteSparseError


@dataclass(frozen=True)
class Done:
    """A piece was done."""

    found: Any


@dataclass(frozen=True)
class Failed:
    """A piece raised; the process takes others. error: where it is one of ours, or memory or disk ran out."""

    why: str
    error: RouteSparseError | None = None


@dataclass(frozen=True)
class Lost:
    """The process is gone, or says itself that it is of no more use, and what it was doing is not done."""

    why: str


Answer = Opened | Refused | Done | Failed | Lost


class Crew(Protocol):
    """Processes that do pieces. One that was started answers Opened, Refused or Lost; one that was asked Done, Failed
    or Lost."""

    def start(self, place: int) -> None:
        """Begin process number ``place``, or another one in the place of one that was lost."""

    def ask(self, place: int, given: Any) -> None:
        """Hand a piece to an opened process that has none."""

    def answer(self) -> tuple[int, Answer]:
        """Wait for the next answer of any process. After Lost nothing of it is left."""

    def arrived(self) -> tuple[int, Answer] | None:
        """An answer that need not be waited for; None where there is none."""

    def close(self) -> None:
        """End all processes, whatever they do."""


class Member:
    """What runs in a process of a crew."""

    def __init__(self) -> None:
        self._do: Do | None = None
        self._worked = False
        self._failed = 0  # pieces in a row

    def open(self, opened: Callable[[int], Do], place: int) -> Answer:
        """Make ready for pieces."""
        try:
            self._do = opened(place)
        # The boundary of a process: whatever went wrong in it is told where it was started.
        except Exception as error:  # noqa: BLE001
            return Refused(_ours(error) or RouteSparseError(f"a process could not begin: {_told(error)}"))
        return Opened()

    def do(self, given: Any) -> Answer:
        """Do one piece. Lost where the piece may succeed in a new process: then this one has to end."""
        assert self._do is not None
        try:
            found = self._do(given)
        # The boundary of a piece: the others go on.
        except Exception as error:  # noqa: BLE001
            return self._failure(error)
        self._worked, self._failed = True, 0
        return Done(found)

    def _failure(self, error: Exception) -> Answer:
        # A kernel that failed leaves a CUDA context in which every later call fails too.
        broken = broken_device()
        if broken is not None:
            return Lost(f"its GPU answers no more: {broken}")
        if isinstance(error, RouteSparseError):
            return Failed(str(error), error)
        self._failed += 1
        if self._worked and self._failed >= WORN_AFTER:
            return Lost(f"{self._failed} failures in a row, the last {_told(error)}")
        return Failed(_told(error), _ours(error))


def _ours(error: Exception) -> RouteSparseError | None:
    """Of our kinds, which pickling keeps: the command line knows a cure for these; None for others."""
    if isinstance(error, RouteSparseError):
        return error
    if is_out_of_memory(error):
        return OutOfMemoryError(_told(error))
    if disk_is_full(error):
        named = getattr(error, "filename", None) or "a file"
        return DiskFullError(f"the disk is full: {shortened(named)} was not written; free space and retry")
    return None


def _told(error: Exception) -> str:
    return str(error) if isinstance(error, RouteSparseError) else f"{type(error).__name__}: {error}"[:500]
