"""Work of several processes that route by the same latency profiles: found or measured once, by the first process
while no other one works, and handed to all with their pieces."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Protocol

from routesparse.engine.crew.share import Outcome, Say, Team
from routesparse.engine.crew.work import Crew, Do, Piece, Work

if TYPE_CHECKING:
    from collections.abc import Iterable

    from routesparse.engine.lab.studies.selection.measure import Bench, Profiles
    from routesparse.engine.lab.studies.selection.methods import Method


class Benched(Protocol):
    """What a process opens: does pieces on a bench."""

    @property
    def bench(self) -> Bench: ...

    @property
    def chosen(self) -> Iterable[Method]: ...

    def __call__(self, given: Any, /) -> Any: ...


@dataclass(frozen=True)
class _Given:
    """A piece. profiles: None asks for them, and there is nothing else to do."""

    profiles: Profiles | None
    given: Any = None


def opening(opened: Callable[[int], Benched]) -> Callable[[int], Do]:
    """What each process of ``share_benched`` opens."""
    return functools.partial(_opened, opened)


def share_benched(
    work: Work, crew: Crew, processes: int, say: Say, deadline: float = float("inf")
) -> Outcome:
    """``share`` of a work whose ``opened`` is an ``opening``, by one profile. Errors: those of ``Team.do``."""
    found: list[Profiles] = []
    with Team(crew, processes, say, deadline) as team:
        if not any(work.lots):
            return Outcome()
        first = [[Piece("profile", _Given(None))]]
        team.do(Work("profile", work.opened, first, lambda _, made: found.append(made), whole=True))
        if not found:
            return team.do(work)  # the time is up: nothing of it is begun
        lots = [[replace(piece, given=_Given(found[0], piece.given)) for piece in lot] for lot in work.lots]
        return team.do(replace(work, lots=lots))


def named(profiles: Profiles) -> str:
    """Of which profiles these are, down to their measured costs: one that was measured anew is another one."""
    costs = {probe: profile.costs for probe, profile in profiles.items()}
    digest = hashlib.sha256(json.dumps(costs, sort_keys=True).encode()).hexdigest()[:12]
    return " ".join([*(profile.name for profile in profiles.values()), digest])


def _opened(opened: Callable[[int], Benched], place: int) -> Do:
    return functools.partial(_done, opened(place))


def _done(do: Benched, given: _Given) -> Any:
    if given.profiles is None:
        return do.bench.prepared(do.chosen)
    do.bench.profiles = given.profiles
    return do(given.given)
