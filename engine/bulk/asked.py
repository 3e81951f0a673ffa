"""What was asked for: by ``routesparse analyze`` of a prompt or a folder, or by a job; and a model that does it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routesparse.engine.calibration import fitted
from routesparse.engine.calibration.artifact import Calibration, load_calibration
from routesparse.engine.calibration.choose import aimed
from routesparse.engine.calibration.fitted import DEFAULT_LOSS, Fitted
from routesparse.engine.calibration.tuned import TunedPrice
from routesparse.engine.config import AuditDepth, RouterConfig, default_segment
from routesparse.engine.models.files import resolve, revision_of
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.progress import Progress, no_progress
from routesparse.engine.prompts.text import Prompt
from routesparse.engine.rows import RunRecord

if TYPE_CHECKING:
    from routesparse.engine.method.latency import LatencyProfile
    from routesparse.engine.models.load import LoadedModel

# As analyze_prompt has them.
_WISHES = ("audit", "trace_tokens", "measure_dense", "check_answer", "keep_text", "domain", "force")
AnalyzePrompt = Callable[..., RunRecord]  # engine/analyze.py's analyze_prompt


@dataclass(frozen=True)
class Asked:
    """Plain values, which other processes are handed too. config: at the tuned price, where there is one."""

    model: str
    config: RouterConfig
    own_segment: bool = False  # False: segments of the length that suits the device
    own_price: bool = True  # False: nobody named a price, so that a fitted model's is that of the target
    loss: float | None = None  # nats a token that were asked for; None: DEFAULT_LOSS of a fitted model
    calibration: str | None = None
    tuned_price: TunedPrice | None = None
    profile: str = "auto"
    audit: AuditDepth = "none"
    trace_tokens: tuple[int, ...] = ()  # tokens whose rows are traced
    measure_dense: bool = False
    check_answer: bool = True
    keep_text: bool = True
    domain: str | None = None
    force: bool = False
    rope: RopeScaling | None = None
    owner: str | None = None  # whose calibrations may be named, beside everybody's

    def config_on(self, loaded: LoadedModel) -> RouterConfig:
        """The configuration for the device that the model lies on."""
        if self.own_segment:
            return self.config
        config = dataclasses.replace(self.config, segment_tokens=default_segment(loaded.on_gpu))
        return config if self.tuned_price is None else self.tuned_price.applied(config, own_segment=False)

    def digest(self) -> str:
        """Hex digits, the same for the same model, calibration and settings. Errors: ModelError, CalibrationError."""
        values = {
            **{
                name: getattr(self, name)
                for name in (*_WISHES, "own_segment", "profile", "own_price", "loss")
            },
            "model": revision_of(resolve(self.model)[0]),
            "rope": None if self.rope is None else self.rope.text,
            "config": self.config.to_dict(),
            "calibration": None
            if self.calibration is None
            else dataclasses.asdict(load_calibration(self.calibration)),
            "tuned_price": None if self.tuned_price is None else dataclasses.asdict(self.tuned_price),
        }
        told = json.dumps(values, sort_keys=True, default=str)
        return hashlib.sha256(told.encode()).hexdigest()


class Analyst:
    """Analyses prompts by one loaded model, as was asked."""

    def __init__(self, asked: Asked, loaded: LoadedModel, analyze_prompt: AnalyzePrompt) -> None:
        """Errors: CalibrationError where a calibration or a tuned price does not fit and is not forced."""
        self._asked, self._loaded, self._analyze_prompt = asked, loaded, analyze_prompt
        self.config = asked.config_on(loaded)
        self._calibration: Calibration | None = None
        if asked.calibration is not None:
            self._calibration = load_calibration(asked.calibration, asked.owner)
            if not asked.force:
                self._calibration.check(loaded.revision, self.config, loaded.dtype)
        self._target: str | None = None
        self.loss: float | None = None  # the target that holds
        self.told: str | None = None  # what is to be said of it
        if asked.loss is not None:
            self._aim(fitted.needed(loaded.revision, loaded.name, asked.loss), asked.loss)
        elif self._may_aim() and (fit := fitted.of_model(loaded.revision)) is not None:
            self._aim(fit, DEFAULT_LOSS)
        if asked.tuned_price is not None:
            if not asked.force:
                asked.tuned_price.check(loaded.revision, self.config)
            # Used by force where it does not fit, the price is a number like any other.
            fits = asked.tuned_price.mismatch(loaded.revision, self.config) is None
            self._target = asked.tuned_price.name if fits else None

    def _may_aim(self) -> bool:
        """Whether nobody chose what sets the price, so that a fit may."""
        asked = self._asked
        chosen = asked.own_price or asked.tuned_price is not None or asked.calibration is not None
        return not chosen and asked.config.policy == "priced"

    def _aim(self, fit: Fitted, loss: float) -> None:
        """Take the price that the model's fit has for the target."""
        asked, self.loss = self._asked, loss
        aim = aimed(fit, asked.domain, self.loss)
        self.told, found = aim.says, aim.found
        self.config = aim.applied(self.config, asked.own_segment)
        if found is not None and found.mismatch(self._loaded.revision, self.config) is None:
            self._target = found.name

    def __call__(
        self,
        prompt: Prompt,
        *,
        profile: LatencyProfile | None = None,
        run_id: str | None = None,
        graphs: Any = None,
        progress: Progress = no_progress,
    ) -> RunRecord:
        """One run. profile: None finds the one that was asked for. Errors: those of ``analyze_prompt``."""
        asked = self._asked
        return self._analyze_prompt(
            prompt,
            self._loaded,
            self.config,
            calibration=self._calibration,
            profile=profile or asked.profile,
            tuned_price=self._target,
            loss_target=self.loss,
            run_id=run_id,
            graphs=graphs,
            progress=progress,
            **{name: getattr(asked, name) for name in _WISHES},
        )
