"""What a worker does: analyses, and the profiles, calibrations and fits that prepare a model.

One model is kept warm between jobs; torch comes with the first of them.
"""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING

from routesparse.engine import paths
from routesparse.engine.bulk.asked import Analyst, Asked
from routesparse.engine.calibration import fitted, tuned
from routesparse.engine.calibration.folders import own_folder
from routesparse.engine.config import parse_trace
from routesparse.engine.errors import CalibrationError, ConfigError, InputError, is_out_of_memory
from routesparse.engine.jobs.documents import unpack
from routesparse.engine.jobs.kinds import CalibrateRequest, FitRequest, ProfileRequest
from routesparse.engine.jobs.request import Request, RunRequest
from routesparse.engine.prompts.text import PromptText
from routesparse.engine.rows import RunRecord

if TYPE_CHECKING:
    from routesparse.engine.calibration.artifact import Calibration
    from routesparse.engine.decide.ahead import Compiled
    from routesparse.engine.device.graphs import Graphs
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.models.load import LoadedModel
    from routesparse.engine.models.rope import RopeScaling

    Artifact = LatencyProfile | Calibration | fitted.Fitted

Report = Callable[[str, int, int], None]  # stage, done, total; raises to stop the analysis
# The seam of run_worker: (request, prompt, run id, report) -> the record of that run id.
Analyze = Callable[[RunRequest, PromptText, str, Report], RunRecord]
# (request, content, folder that stands for the home, report) -> the name of what was written.
Prepare = Callable[[Request, bytes, Path, Report], str]
MeasureProfile = Callable[[ProfileRequest, Report], "Artifact"]
Calibrate = Callable[[CalibrateRequest, "LoadedModel", Sequence[PromptText], Report], "Artifact"]
Fit = Callable[[FitRequest, "LoadedModel", Sequence[PromptText], Report], "Artifact"]
# What run_worker compiles from its start on; None where there is nothing to compile for.
CompileAhead = Callable[[], "Compiled | None"]

_CHANGED = "the quality target {!r} changed or was deleted since this job was submitted; submit it again"


class WarmModel:
    """The model that was used last, or another one in its place; analyses, calibrations and fits share it."""

    def __init__(self) -> None:
        self.graphs: Graphs | None = None  # of its earlier prompts
        self._wanted: tuple[str, RopeScaling | None] | None = None
        self._files: str | None = None  # revision of the files that were loaded; None for a hub id
        self._loaded: LoadedModel | None = None

    def load(self, wanted: str, rope: RopeScaling | None = None) -> LoadedModel:
        """The model, loaded where another one is there, or one of other positions, or its files have changed.

        Errors: those of load_model.
        """
        from routesparse.engine.device.graphs import Graphs
        from routesparse.engine.models.load import load_model

        files = _revision_of_files(wanted)
        if self._loaded is not None and (self._wanted, self._files) == ((wanted, rope), files):
            return self._loaded
        self.forget()  # before loading: two models may not fit
        self._loaded = load_model(wanted, rope=rope)
        self._wanted, self._files = (wanted, rope), files
        self.graphs = Graphs()
        return self._loaded

    def forget(self) -> None:
        """Give its memory back."""
        self._loaded = self._wanted = self._files = self.graphs = None
        gc.collect()
        import torch

        if torch.cuda.is_available():
            torch.cuda.empty_cache()


def _revision_of_files(wanted: str) -> str | None:
    """Of a model's files as they are now; None for a hub id, which is trusted while warm. Errors: ModelError."""
    from routesparse.engine.models.files import HUB_ID, resolve, revision_of

    return None if HUB_ID.fullmatch(wanted) else revision_of(resolve(wanted)[0])


class WarmAnalysis:
    """Analyses prompts with a warm model."""

    def __init__(self, analyze_prompt: Callable[..., RunRecord], warm: WarmModel | None = None) -> None:
        """analyze_prompt: as in engine/analyze.py."""
        self._analyze_prompt = analyze_prompt
        self._warm = warm or WarmModel()

    def __call__(self, request: RunRequest, prompt: PromptText, run_id: str, report: Report) -> RunRecord:
        """Errors: those of load_model, tokenize and analyze_prompt, and what ``report`` raises."""
        report("load", 0, 1)
        loaded = self._warm.load(request.model, request.scaling)
        report("tokenize", 0, 1)
        tokenized = loaded.tokenize(prompt)
        calibration, config = request.calibration, request.config()
        price = None if request.quality is None else _target(request)
        if price is None and calibration is not None:
            price = tuned.find_known(calibration, request.owner)
        if price is not None:
            calibration, config = None, price.applied(config, request.price)
        asked = Asked(
            request.model,
            config,
            own_segment=request.segment is not None,
            own_price=request.price is not None,
            loss=request.loss,
            calibration=calibration,
            tuned_price=price,
            profile=request.profile,
            audit=request.audit,
            trace_tokens=parse_trace(request.trace),
            measure_dense=request.measure_dense,
            keep_text=request.keep_text,
            domain=request.domain,
            rope=request.scaling,
            owner=request.owner,
        )
        try:
            analyse = Analyst(asked, loaded, self._analyze_prompt)
            return analyse(tokenized, run_id=run_id, graphs=self._warm.graphs, progress=report)
        except Exception as error:
            if is_out_of_memory(error):
                self._warm.forget()
            raise


def _target(request: RunRequest) -> tuned.TunedPrice:
    """The quality target that the job was submitted with. Errors: CalibrationError where it is no longer that one."""
    try:
        found = tuned.load(str(request.quality), request.owner)
    except CalibrationError as error:
        raise CalibrationError(_CHANGED.format(request.quality)) from error
    if request.price not in (None, found.price):
        raise CalibrationError(_CHANGED.format(request.quality))
    return found


class WarmPreparation:
    """Prepares models; a calibration or a fit takes the warm model of the analyses."""

    def __init__(
        self, measure_profile: MeasureProfile, calibrate: Calibrate, fit: Fit, warm: WarmModel
    ) -> None:
        """measure_profile, calibrate, fit: as in cli/worker.py."""
        self._measure_profile, self._calibrate, self._fit, self._warm = measure_profile, calibrate, fit, warm

    def __call__(self, request: Request, content: bytes, folder: Path, report: Report) -> str:
        """Errors: ConfigError for a kind that is none of these, those of the engine, and what ``report`` raises."""
        try:
            made, target = self._made(request, content, report)
        except Exception as error:
            if is_out_of_memory(error):
                self._warm.forget()
            raise
        report("write", 0, 1)
        place = folder / target.relative_to(paths.workplace())
        made.save(place / f"{made.name}.json" if isinstance(made, fitted.Fitted) else place)
        return made.name

    def _made(self, request: Request, content: bytes, report: Report) -> tuple[Artifact, Path]:
        """What was asked for, and the folder that it belongs in."""
        if isinstance(request, ProfileRequest):
            self._warm.forget()  # a GPU without another model on it is measured
            report("profile", 0, 1)
            return self._measure_profile(request, report), paths.profiles()
        if not isinstance(request, CalibrateRequest | FitRequest):
            raise ConfigError(f"a job of kind {request.kind!r} prepares no model; update the worker")
        documents = unpack(content)
        report("load", 0, 1)
        loaded = self._warm.load(request.model)
        reads = loaded.max_tokens
        most = request.tokens if isinstance(request, FitRequest) else request.most_tokens
        if most > reads:
            raise InputError(f"prompts of {most:,} tokens are longer than the model reads, {reads:,}")
        report("tokenize", 0, 1)
        for document in documents:
            loaded.check_text(document)
        if isinstance(request, FitRequest):
            return self._fit(request, loaded, documents, report), fitted.own_folder()
        return self._calibrate(request, loaded, documents, report), own_folder(request.owner)
