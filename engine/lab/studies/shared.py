"""A study whose pieces processes share: each piece leaves lines in one file, which this process alone writes."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from routesparse.engine.calibrate import one_profile
from routesparse.engine.calibrate.row_files import Appender
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Outcome, failures
from routesparse.engine.crew.work import Piece, Work
from routesparse.engine.lab import study

Line = dict[str, Any]


def append_lines(
    path: Path,
    opened: Callable[[int], one_profile.Benched],
    lots: Sequence[Sequence[Piece]],
    processes: Processes,
    deadline: float,
) -> int:
    """Append a header and the line that ``opened`` makes of each piece, None where it makes none; all route by one
    profile.

    Returns how many lines say that they failed. Errors: SystemExit where a piece failed.
    """
    with Appender(path) as out:

        def keep(piece: Piece, line: Line | None) -> None:
            if line is not None:
                out.write(line)

        work = Work("measure", one_profile.opening(opened), lots, keep)
        check(one_profile.share(work, processes, study.note, deadline, lambda header, _: out.write(header)))
    return len(out.failed)


def check(outcome: Outcome) -> None:
    """Errors: SystemExit where a piece failed, such as over a process that ended again and again."""
    if outcome.failed:
        raise SystemExit(f"{failures(outcome, 'pieces')}; the same command tries again")
