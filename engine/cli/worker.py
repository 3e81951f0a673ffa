"""``routesparse worker``: the process beside the dashboard that runs its jobs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any

import typer

from routesparse.engine import paths
from routesparse.engine.errors import InputError, StoreError

if TYPE_CHECKING:
    from routesparse.engine.rows import RunRecord


def worker(
    once: Annotated[bool, typer.Option("--once", help="Stop when no job waits.")] = False,
) -> None:
    """Run queued jobs until Ctrl-C; one per GPU, or one per machine without a GPU.

    Exit code 2 when the job queue can't be opened: starting again would not help.
    """
    from routesparse.engine.jobs.analysis import WarmAnalysis
    from routesparse.engine.jobs.worker import run_worker

    try:
        run_worker(paths.home(), WarmAnalysis(_analyze_prompt), once=once)
    except StoreError as error:
        # The queue can't be opened: another start won't help, the home must change.
        raise InputError(str(error)) from error


def _analyze_prompt(*arguments: Any, **options: Any) -> RunRecord:
    """engine/analyze.py's, which loads torch: an idle worker does not."""
    from routesparse.engine.analyze import analyze_prompt

    return analyze_prompt(*arguments, **options)
