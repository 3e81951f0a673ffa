"""What a worker does to prepare a model: measure a latency profile, or calibrate on texts that came with the job."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from routesparse.engine import paths
from routesparse.engine.calibration.folders import own_folder
from routesparse.engine.errors import ConfigError, is_out_of_memory
from routesparse.engine.jobs.analysis import Report, WarmModel
from routesparse.engine.jobs.documents import unpack
from routesparse.engine.jobs.kinds import CalibrateRequest, ProfileRequest
from routesparse.engine.jobs.request import Request
from routesparse.engine.prompts.text import PromptText

if TYPE_CHECKING:
    from routesparse.engine.models.load import LoadedModel


class Artifact(Protocol):
    """A latency profile or a calibration: something with a name that saves itself in a folder."""

    @property
    def name(self) -> str:
        """Its file is called ``<name>.json``."""

    def save(self, folder: Path) -> Path:
        """Write the file."""


# The seam of run_worker: (request, content, folder that stands for the home, report) -> the name of what was written.
Prepare = Callable[[Request, bytes, Path, Report], str]
MeasureProfile = Callable[[ProfileRequest, Report], Artifact]
Calibrate = Callable[[CalibrateRequest, "LoadedModel", Sequence[PromptText], Report], Artifact]


class WarmPreparation:
    """Prepares models; a calibration takes the warm model of the analyses."""

    def __init__(self, measure_profile: MeasureProfile, calibrate: Calibrate, warm: WarmModel) -> None:
        """measure_profile, calibrate: as in cli/worker.py."""
        self._measure_profile, self._calibrate, self._warm = measure_profile, calibrate, warm

    def __call__(self, request: Request, content: bytes, folder: Path, report: Report) -> str:
        """Errors: ConfigError for a kind that is none of these, those of the engine, and what ``report`` raises."""
        made: Artifact
        if isinstance(request, ProfileRequest):
            self._warm.forget()  # a GPU without another model on it is measured
            report("profile", 0, 1)
            made, target = self._measure_profile(request, report), paths.profiles()
        elif isinstance(request, CalibrateRequest):
            made, target = self._calibrated(request, content, report), own_folder(request.owner)
        else:
            raise ConfigError(f"a job of kind {request.kind!r} prepares no model; update the worker")
        report("write", 0, 1)
        made.save(folder / target.relative_to(paths.workplace()))
        return made.name

    def _calibrated(self, request: CalibrateRequest, content: bytes, report: Report) -> Artifact:
        documents = unpack(content)
        report("load", 0, 1)
        loaded = self._warm.load(request.model)
        report("tokenize", 0, 1)
        for document in documents:
            loaded.check_text(document)
        try:
            return self._calibrate(request, loaded, documents, report)
        except Exception as error:
            if is_out_of_memory(error):
                self._warm.forget()
            raise
