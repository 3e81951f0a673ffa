"""``routesparse worker``: the process beside the dashboard that runs its jobs."""

from __future__ import annotations

import ctypes
from typing import TYPE_CHECKING, Annotated, Any

import typer

from routesparse.engine import paths
from routesparse.engine.cli.output import Reporter
from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.models.files import DEMO

if TYPE_CHECKING:
    from routesparse.engine.decide.ahead import Compiled
    from routesparse.engine.rows import RunRecord


def worker(
    once: Annotated[bool, typer.Option("--once", help="Stop when no job waits.")] = False,
) -> None:
    """Run queued jobs until Ctrl-C; one per GPU, or one per machine without a GPU.

    Exit code 2 when the job queue can't be opened: starting again would not help. Exit code 1 when it was deleted.
    """
    from routesparse.engine.jobs.analysis import WarmAnalysis
    from routesparse.engine.jobs.database import QueueGoneError
    from routesparse.engine.jobs.worker import run_worker

    try:
        compile_ahead = _compile_for_jobs if _has_nvidia_driver() else None
        run_worker(paths.home(), WarmAnalysis(_analyze_prompt), once=once, compile_ahead=compile_ahead)
    except QueueGoneError as error:
        # Another start makes a new queue: the Procfile's loop does that.
        Reporter().warn(str(error))
        raise typer.Exit(1) from error
    except StoreError as error:
        # The queue can't be opened: another start won't help, the home must change.
        raise InputError(str(error)) from error
    if compile_ahead is not None:
        from routesparse.kernels.compile_ahead import stop_compiling

        # A process that ends does not wait for what has not begun to compile.
        stop_compiling()


def _analyze_prompt(*arguments: Any, **options: Any) -> RunRecord:
    """engine/analyze.py's, which loads torch: an idle worker does not."""
    from routesparse.engine.analyze import analyze_prompt

    return analyze_prompt(*arguments, **options)


def _has_nvidia_driver() -> bool:
    """Whether there may be a GPU: where there is none, torch, which knows for sure, is not imported for it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _compile_for_jobs() -> Compiled | None:
    """Compile what prompts of the bundled model, the default of a job, launch on this machine's GPU."""
    from routesparse.engine.analyze import compile_for_prompts

    return compile_for_prompts(DEMO)
