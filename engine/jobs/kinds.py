"""The kinds of jobs beside an analysis, all for a model's preparation, and reading any job's request.

"profile" measures what plans and the probe cost on the worker's device for a model's head size. "calibrate" measures
how far the probe flatters the selected heads on texts that come with the job (documents.py), "fit" the loss by price.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Annotated, ClassVar, Literal

from routesparse.engine.calibration.choose import LEAST_CLUSTERS
from routesparse.engine.calibration.fitted import LEAST_TOKENS, MIXED
from routesparse.engine.calibration.folders import check_name, check_not_bundled, length_buckets
from routesparse.engine.config import (
    MAX_TOKENS,
    ProbeMode,
    RouterConfig,
    Seed,
    Tokens,
    certified_mass,
    default_segment,
)
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.documents import unpack
from routesparse.engine.jobs.job import Kind
from routesparse.engine.jobs.request import Request, RunRequest, check_request
from routesparse.engine.prompts.text import clean_label
from routesparse.engine.schema import Line, Real, Text, Whole

CalibratedPolicy = Literal["priced", "certified"]
CALIBRATED: tuple[CalibratedPolicy, ...] = ("priced", "certified")
PromptTokens = Annotated[int, Whole(1, MAX_TOKENS)]
Prompts = Annotated[int, Whole(1, 10_000)]


@dataclass(frozen=True)
class ProfileRequest(Request):
    """Measure a latency profile for a model's attention shape. Errors: ConfigError, when it is made."""

    kind: ClassVar[Kind] = "profile"

    model: Line = "demo"
    probe: ProbeMode = "exact"
    quick: bool = False  # two short lengths only
    owner: Text | None = None  # whose job it is; the profile is the machine's

    def __post_init__(self) -> None:
        check_request(self)

    @property
    def title(self) -> str:
        """See ``Request.title``."""
        return f"latency profile for {clean_label(self.model)}"

    def check_content(self, content: bytes) -> None:
        """There is none. Errors: ConfigError."""
        if content:
            raise ConfigError("a profile is measured without texts; submit it without any")


@dataclass(frozen=True)
class CalibrateRequest(Request):
    """Calibrate a model on one domain's texts. Errors: ConfigError, InputError, when it is made."""

    kind: ClassVar[Kind] = "calibrate"

    name: Line = ""  # of the domain and of the calibration
    model: Line = "demo"
    least_tokens: PromptTokens = 4_096  # of a prompt cut from the texts
    most_tokens: PromptTokens = 8_192
    fold_a: Prompts = 24  # prompts per length bucket to fit on
    fold_b: Prompts = 60  # prompts per bucket to take delta from
    audit_rows: Tokens = 512  # body rows audited per unit; 0: all of them
    policy: CalibratedPolicy = "priced"
    tau: Real | None = None  # of a layer under the policy "priced", else of each head; None: the default
    price: Real | None = None
    segment: PromptTokens | None = None  # tokens; None: what suits the worker's device
    seed: Seed = 0
    owner: Text | None = None  # whose calibration it becomes

    def __post_init__(self) -> None:
        check_request(self)
        check_name(self.name)
        length_buckets(self.least_tokens, self.most_tokens)
        self.config().check_runnable()

    @property
    def title(self) -> str:
        """See ``Request.title``."""
        return f"calibration {self.name}"

    @property
    def prompts(self) -> int:
        """How many prompts are measured at most, both folds and all buckets of lengths together."""
        return (self.fold_a + self.fold_b) * len(length_buckets(self.least_tokens, self.most_tokens))

    def config(self, on_gpu: bool = False) -> RouterConfig:
        """The router's configuration on a worker's device. Errors: ConfigError."""
        return RouterConfig(
            policy=self.policy,
            **certified_mass(self.policy, self.tau),
            price=RouterConfig.price if self.price is None else self.price,
            segment_tokens=default_segment(on_gpu) if self.segment is None else self.segment,
            break_even_tokens=0,
            seed=self.seed,
        )

    def check_content(self, content: bytes) -> None:
        """Packed documents, two at least, and a domain that is not bundled. Errors: InputError.

        The name is checked here, not where the request is made: a stored job stays readable when a later version
        bundles a calibration of its name.
        """
        check_not_bundled(self.name)
        unpack(content)


@dataclass(frozen=True)
class FitRequest(Request):
    """Measure a model's loss by price on one kind of text. Errors: ConfigError, InputError, when it is made."""

    kind: ClassVar[Kind] = "fit"

    name: Line = ""  # of the kind of text
    model: Line = "demo"
    windows: Annotated[int, Whole(LEAST_CLUSTERS, 10_000)] = 24  # at least, as many of each document
    tokens: Annotated[int, Whole(LEAST_TOKENS, MAX_TOKENS)] = 8_192  # of a window; half of a shorter document
    owner: Text | None = None  # nobody's: a fit is the default of all who use the machine

    def __post_init__(self) -> None:
        check_request(self)
        check_name(self.name)
        if self.name == MIXED:
            raise ConfigError(f"{MIXED!r} are all kinds of text together; choose another name")
        if self.owner is not None:
            raise ConfigError("a fit is everybody's default; the operator makes it by `routesparse fit`")

    @property
    def title(self) -> str:
        """See ``Request.title``."""
        return f"fit on {self.name}"

    def check_content(self, content: bytes) -> None:
        """Packed documents, two at least. Errors: InputError."""
        unpack(content)


OfTexts = CalibrateRequest | FitRequest
Preparation = ProfileRequest | OfTexts
_KINDS: dict[str, type[Request]] = {
    one.kind: one for one in (RunRequest, ProfileRequest, CalibrateRequest, FitRequest)
}


def read_request(kind: str, text: str) -> Request:
    """A job's request. Errors: ConfigError, InputError, such as for a kind or a field of a newer version."""
    if kind not in _KINDS:
        raise ConfigError(f"a job of kind {kind[:40]!r} is not known to this version; update the worker")
    return _KINDS[kind].from_json(text)
