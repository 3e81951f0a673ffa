"""``routesparse worker``: the process beside the dashboard that runs its jobs."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import TYPE_CHECKING, Annotated, Any

import typer

from routesparse.engine import paths
from routesparse.engine.calibration.folders import length_buckets
from routesparse.engine.cli.output import Reporter
from routesparse.engine.config import RouterConfig
from routesparse.engine.device.names import cpu_name
from routesparse.engine.errors import InputError, StoreError
from routesparse.engine.models.files import DEMO
from routesparse.engine.progress import Progress
from routesparse.engine.prompts.text import PromptText

if TYPE_CHECKING:
    from routesparse.engine.calibration.artifact import Calibration
    from routesparse.engine.calibration.fitted import Fitted
    from routesparse.engine.decide.ahead import Compiled
    from routesparse.engine.jobs.kinds import CalibrateRequest, FitRequest, ProfileRequest
    from routesparse.engine.jobs.presence import Device
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.models.load import LoadedModel
    from routesparse.engine.rows import RunRecord


def worker(once: Annotated[bool, typer.Option("--once", help="Stop when no job waits.")] = False) -> None:
    """Run queued jobs until Ctrl-C; one per GPU, or one per machine without a GPU.

    At Ctrl-C or SIGTERM the running job goes back into the queue at once, to begin anew, and the worker ends within
    four seconds, or at once at a second one.
    Exit code 2 when the job queue can't be opened: starting again would not help. Exit code 1 when it was deleted, or
    when its server can't be reached.
    """
    from routesparse.engine.jobs.analysis import WarmAnalysis, WarmModel, WarmPreparation
    from routesparse.engine.jobs.database import QueueAwayError, QueueGoneError
    from routesparse.engine.jobs.signals import GRACE_S
    from routesparse.engine.jobs.worker import run_worker

    try:
        compile_ahead = _compile_for_jobs if _has_nvidia_driver() else None
        warm = WarmModel()
        run_worker(
            paths.home(),
            WarmAnalysis(_analyze_prompt, warm),
            WarmPreparation(measure_profile, calibrate, fit, warm),
            once=once,
            describe=_device,
            compile_ahead=compile_ahead,
            grace_s=GRACE_S,
        )
    except (QueueAwayError, QueueGoneError) as error:
        # Another start waits for the server, or makes a new queue: the Procfile's loop does that.
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


def measure_profile(request: ProfileRequest, progress: Progress) -> LatencyProfile:
    """What a job of kind "profile" measures. Errors: ModelError, UnsupportedModelError, ProfileError."""
    from routesparse.engine.models.load import shape_of
    from routesparse.engine.profiles.measure import measure_here

    config = RouterConfig(probe=request.probe)
    return measure_here(shape_of(request.model), config, request.quick, progress=progress)


def calibrate(
    request: CalibrateRequest, loaded: LoadedModel, documents: Sequence[PromptText], progress: Progress
) -> Calibration:
    """What a job of kind "calibrate" makes. Errors: those of make_calibration."""
    from routesparse.engine.calibrate.fit import Recipe, cut_folds
    from routesparse.engine.calibrate.measure import make_calibration
    from routesparse.engine.calibrate.prompts import tokenized

    recipe = Recipe(
        request.name,
        request.name,
        request.config(loaded.on_gpu),
        length_buckets(request.least_tokens, request.most_tokens),
        (request.fold_a, request.fold_b),
        request.audit_rows,
    )
    texts = [tokenized(document, request.name, loaded.tokenizer) for document in documents]
    return make_calibration(
        loaded, cut_folds({request.name: texts}, recipe, loaded.tokenizer), recipe, progress
    )


def fit(
    request: FitRequest, loaded: LoadedModel, documents: Sequence[PromptText], progress: Progress
) -> Fitted:
    """What a job of kind "fit" makes. Errors: those of fit_kind."""
    from routesparse.engine.calibrate.fitting import fit_kind
    from routesparse.engine.calibrate.prompts import tokenized

    texts = [tokenized(document, request.name, loaded.tokenizer) for document in documents]
    return fit_kind(loaded, texts, request.windows, request.tokens, progress)


def _has_nvidia_driver() -> bool:
    """Whether there may be a GPU: where there is none, torch, which knows for sure, is not imported for it."""
    try:
        ctypes.CDLL("libcuda.so.1")
    except OSError:
        return False
    return True


def _device() -> Device:
    """What this worker's jobs run on."""
    import psutil

    from routesparse.engine.jobs.presence import Device

    if _has_nvidia_driver():
        import torch

        if torch.cuda.is_available():
            found = torch.cuda.get_device_properties(0)
            return Device(torch.cuda.get_device_name(0), True, found.total_memory)
    return Device(cpu_name(), False, psutil.virtual_memory().total)


def _compile_for_jobs() -> Compiled | None:
    """Compile what prompts of the bundled model, the default of a job, launch on this machine's GPU."""
    from routesparse.engine.analyze import compile_for_prompts

    return compile_for_prompts(DEMO)
