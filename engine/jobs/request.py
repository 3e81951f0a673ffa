"""What a job asks for: the choices of the New run page, checked where they are made.

A request names things, it never carries a path to read: the prompt travels as bytes and its label is only a label.
The one exception is ``model``, which may be a local folder; the page offers folders of configured roots only.
"""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from typing import Any, ClassVar, Self

from routesparse.engine.config import (
    AuditDepth,
    LatencyBudget,
    Policy,
    Price,
    ProbeMode,
    RouterConfig,
    Seed,
    Tokens,
    argument,
    certified_mass,
    check_settings,
    default_segment,
    parse_trace,
)
from routesparse.engine.errors import ConfigError
from routesparse.engine.files.plain_files import few_values
from routesparse.engine.jobs.job import Kind
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.prompts.text import MAX_LABEL, check_domain, clean_label, decode_prompt
from routesparse.engine.schema import Line, Real, Text, from_json

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]*")


class Request:
    """What the requests of all kinds of jobs have in common; each is a frozen dataclass of plain values."""

    kind: ClassVar[Kind]
    model: Line
    owner: Text | None
    __dataclass_fields__: ClassVar[dict[str, Any]]

    @property
    def title(self) -> str:
        """What lists call the job."""
        raise NotImplementedError

    @property
    def keeps_content(self) -> bool:
        """Whether the job's content stays for another try where it fails or is cancelled."""
        return True

    def check_content(self, content: bytes) -> None:
        """Check what is submitted with the request. Errors: InputError."""
        raise NotImplementedError

    def to_json(self) -> str:
        """One line that from_json reads."""
        return json.dumps(vars(self), sort_keys=True)

    @classmethod
    def from_json(cls, text: str) -> Self:
        """The inverse of to_json. Errors: ConfigError, such as for a request of a newer version or another kind."""
        try:
            values = from_json(few_values(text))
        except (ValueError, TypeError) as error:
            raise ConfigError(
                f"the job's request is no JSON ({type(error).__name__}); submit it again"
            ) from None
        if not isinstance(values, dict):
            raise ConfigError("the job's request is no JSON object; submit it again")
        unknown = sorted(set(values) - set(cls.__dataclass_fields__))
        if unknown:
            raise ConfigError(
                f"the job asks for {', '.join(unknown)}, which this version doesn't know; update the worker"
            )
        return cls(**values)


def check_request(request: Request) -> None:
    """Errors: ConfigError for the first field whose value means nothing, or where no model is named."""
    check_settings(request)
    if not request.model.strip():
        raise ConfigError("model '' names no model; pass demo, a folder, or a hub id org/name")


@dataclass(frozen=True)
class RunRequest(Request):
    """One analysis, as the user asked for it. Errors: ConfigError, when it is made."""

    kind: ClassVar[Kind] = "analyse"

    model: Line = "demo"
    calibration: Text | None = None  # a name, bundled or made here; None: the in-prompt certificate alone
    policy: Policy = RouterConfig.policy
    budget: Text | None = None  # T_l: "0.25" of dense or "800us" a layer
    tau: Real | None = None  # of a layer under the policy "priced", else of each head; None: the default
    price: Real | None = None  # of a block under the policy "priced"; None: the default
    loss: Real | None = None  # target, nats a token, by the model's fit; None: the default of a fitted model
    quality: Text | None = None  # the tuned price that sets the price, by its name
    segment: Tokens | None = None  # tokens; None: what suits the worker's device
    probe: ProbeMode = "exact"
    audit: AuditDepth = "none"
    seed: Seed = 0
    keep_text: bool = True  # False: the bundle holds the prompt's hash only, and its file goes with the job
    domain: Text | None = None
    label: str = "pasted text"  # of the prompt; shortened to the last part of a path, never opened
    profile: Text = "auto"
    break_even: Tokens | None = None  # tokens
    trace: Line | None = None  # tokens whose rows are kept key by key, "120,4071"
    measure_dense: bool = False  # however long; without, where it is quick
    owner: Text | None = None  # whose job and run it is; the queue sets it, never a page's address
    rope: Text | None = None  # the JSON of a RopeScaling; None: the model's own positions

    def __post_init__(self) -> None:
        object.__setattr__(self, "label", clean_label(self.label))
        check_request(self)
        if self.rope is not None:
            object.__setattr__(self, "rope", RopeScaling.parse(self.rope).text)
        for name in ("calibration", "quality", "profile"):
            value = getattr(self, name)
            if value is not None and (not _NAME.fullmatch(value) or len(value) > MAX_LABEL):
                raise ConfigError(f"{name} {value[:MAX_LABEL]!r} is no name; pass a bundled one, not a path")
        if self.loss is not None:
            argument(Price, self.loss, "loss")
            if self.policy != "priced" or (self.price, self.quality) != (None, None):
                raise ConfigError("a loss sets the price: leave price, quality target and another policy out")
        check_domain(self.domain)
        parse_trace(self.trace)
        self.config().check_runnable()

    @classmethod
    def like(cls, config_json: str, **own: Any) -> RunRequest:
        """With the settings of a stored run, as far as jobs have them; own: the rest, and what differs."""
        config = RouterConfig().to_dict() | json.loads(config_json)
        is_priced = config["policy"] == "priced"
        settings = {
            "policy": config["policy"],
            "price": config["price"] if is_priced else None,
            "tau": config["tau_layer" if is_priced else "tau"],
            "budget": config["budget"],
            "segment": config["segment_tokens"],
            "probe": config["probe"],
            "break_even": config["break_even_tokens"],
            "seed": config["seed"],
            "rope": config.get("rope"),
        }
        return cls(**{**settings, **own})

    def config(self, on_gpu: bool = False) -> RouterConfig:
        """The router's configuration on a worker's device. Errors: ConfigError."""
        return RouterConfig(
            policy=self.policy,
            **certified_mass(self.policy, self.tau),
            price=RouterConfig.price if self.price is None else self.price,
            budget=None if self.budget is None else LatencyBudget.parse(self.budget),
            segment_tokens=default_segment(on_gpu) if self.segment is None else self.segment,
            probe=self.probe,
            break_even_tokens=self.break_even,
            seed=self.seed,
        )

    @property
    def scaling(self) -> RopeScaling | None:
        """How positions are rescaled; None: they are not."""
        return None if self.rope is None else RopeScaling.parse(self.rope)

    @property
    def title(self) -> str:
        """The prompt's label."""
        return self.label

    @property
    def keeps_content(self) -> bool:
        """See ``Request.keeps_content``."""
        return self.keep_text

    def check_content(self, content: bytes) -> None:
        """The prompt. Errors: PromptError (empty, binary, not UTF-8)."""
        decode_prompt(content, self.label)
