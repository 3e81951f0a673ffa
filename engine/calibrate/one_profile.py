"""Work of several processes that route by the same latency profiles: found or measured once, by the first process
while no other one works, and handed to all with their pieces."""

from __future__ import annotations

import functools
import hashlib
import json
from collections.abc import Callable, Iterable
from dataclasses import dataclass, replace
from typing import Any, Protocol

from routesparse.engine.calibrate.beside_dense import BesideDense, Probe, Profiles
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Outcome, Say, Team
from routesparse.engine.crew.work import Do, Piece, Work


class Benched(Protocol):
    """What a process opens: does pieces on a bench. probes: whose profiles it routes by; header: of what it makes."""

    @property
    def bench(self) -> BesideDense: ...

    @property
    def probes(self) -> Iterable[Probe]: ...

    @property
    def header(self) -> dict[str, Any]: ...

    def __call__(self, given: Any, /) -> Any: ...


@dataclass(frozen=True)
class First:
    """What only a process that has the model knows."""

    profiles: Profiles
    header: dict[str, Any]


@dataclass(frozen=True)
class _Given:
    """A piece. profiles: None asks for ``First``."""

    profiles: Profiles | None
    given: Any = None


def opening(opened: Callable[[int], Benched]) -> Callable[[int], Do]:
    """What each process of such a team opens."""
    return functools.partial(_opened, opened)


def ask(team: Team, opened: Callable[[int], Do]) -> First | None:
    """Open one process, find or measure its profiles while no other one works, and say what it has.

    None where the time was up before. Errors: those of opening; ProfileError.
    """
    found: list[First] = []
    lots = [[Piece("model", _Given(None))]]
    team.do(Work("model", opened, lots, lambda _, made: found.append(made), whole=True))
    return found[0] if found else None


def do(team: Team, work: Work, first: First | None) -> Outcome:
    """Do a work whose ``opened`` is an ``opening``, by the profiles of the first process; None: the time is up."""
    if first is None:
        return team.do(work)
    lots = [[replace(piece, given=_Given(first.profiles, piece.given)) for piece in lot] for lot in work.lots]
    return team.do(replace(work, lots=lots))


def share(
    work: Work,
    processes: Processes,
    say: Say,
    deadline: float = float("inf"),
    begin: Callable[[dict[str, Any], int], object] = lambda header, count: None,
) -> Outcome:
    """``ask`` and ``do``, where there is anything to do. Errors: those of ``Team.do``.

    begin: gets the first process's header, and how many processes there are.
    """
    if not any(work.lots):
        return Outcome()
    crew, count = processes.crew(work.opened)
    with Team(crew, count, say, deadline) as team:
        first = ask(team, work.opened)
        if first is not None:
            begin(first.header, count)
        return do(team, work, first)


def named(profiles: Profiles) -> str:
    """Of which profiles these are, down to their measured costs: one that was measured anew is another one."""
    costs = {probe: profile.costs for probe, profile in profiles.items()}
    digest = hashlib.sha256(json.dumps(costs, sort_keys=True).encode()).hexdigest()[:12]
    return " ".join([*(profile.name for profile in profiles.values()), digest])


def _opened(opened: Callable[[int], Benched], place: int) -> Do:
    return functools.partial(_done, opened(place))


def _done(benched: Benched, asked: _Given) -> Any:
    if asked.profiles is None:
        return First(benched.bench.prepared(benched.probes), benched.header)
    benched.bench.profiles = asked.profiles
    return benched(asked.given)
