"""``routesparse worker``: the process beside the dashboard that runs its jobs."""

from __future__ import annotations

from typing import Annotated

import typer

from routesparse.engine import paths


def worker(
    once: Annotated[bool, typer.Option("--once", help="Stop when no job waits.")] = False,
) -> None:
    """Run queued jobs until Ctrl-C; one per GPU, or one per machine without a GPU."""
    from routesparse.engine.jobs.worker import run_worker

    run_worker(paths.home(), once=once)
