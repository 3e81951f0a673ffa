"""A study whose pieces processes share: each piece leaves lines in one file, which this process alone writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Outcome, failures
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.lab import study
from routesparse.engine.lab.studies.one_profile import Benched, opening, share_benched
from routesparse.engine.lab.studies.selection import rows

Line = dict[str, Any]


def append_lines(
    path: Path,
    opened: Callable[[int], Benched],
    lots: Sequence[Sequence[Piece]],
    processes: Processes,
    deadline: float,
) -> int:
    """Append what ``opened``'s pieces return, lists of lines; all route by one profile.

    Returns how many lines say that they failed. Errors: SystemExit where a piece failed.
    """
    started = opening(opened)
    crew, count = processes.crew(started)
    with rows.Appender(path) as out:

        def keep(piece: Piece, lines: Sequence[Line] | None) -> None:
            for line in lines or ():
                out.write(line)

        check(share_benched(Work("measure", started, lots, keep), crew, count, study.note, deadline))
    return len(out.failed)


def check(outcome: Outcome) -> None:
    """Errors: SystemExit where a piece failed, such as over a process that ended again and again."""
    if outcome.failed:
        raise SystemExit(f"{failures(outcome, 'pieces')}; the same command tries again")
