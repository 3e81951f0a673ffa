"""A study whose pieces processes share: each piece leaves lines in one file, which this process alone writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Outcome, failures, share
from routesparse.engine.crew.work import Do, Piece, Work
from routesparse.engine.evaluation import study
from routesparse.engine.evaluation.studies.selection import rows

Line = dict[str, Any]


def append_lines(
    path: Path,
    opened: Callable[[int], Do],
    lots: Sequence[Sequence[Piece]],
    processes: Processes,
    deadline: float,
) -> None:
    """Append what ``opened``'s pieces return, lists of lines. Errors: SystemExit where a piece failed."""
    crew, count = processes.crew(opened)
    with rows.Appender(path) as out:

        def keep(piece: Piece, lines: Sequence[Line] | None) -> None:
            for line in lines or ():
                out.write(line)

        check(share(Work("measure", opened, lots, keep), crew, count, study.note, deadline))


def check(outcome: Outcome) -> None:
    """Errors: SystemExit where a piece failed, such as over a process that ended again and again."""
    if outcome.failed:
        raise SystemExit(f"{failures(outcome, 'pieces')}; the same command tries again")
