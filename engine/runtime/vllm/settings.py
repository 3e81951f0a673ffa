"""What the environment says about routing inside vLLM; engine/README.md has the table.

vLLM hands a plug-in no arguments of its own, and its workers are other processes, so these are environment variables.
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from routesparse.engine import paths
from routesparse.engine.config import Price, RouterConfig, argument, default_config
from routesparse.engine.errors import ConfigError, InputError
from routesparse.engine.schema import from_json

SWITCH = "ROUTESPARSE_VLLM"
MOST_APART = 10**9  # of two recorded requests
RECORD_EVERY = 100


@dataclass(frozen=True)
class ServingSettings:
    """How requests are routed, and which of them are recorded."""

    config: RouterConfig
    calibration: str | None  # as route() takes it: a calibration or a tuned price
    loss: float | None  # nats a token, as route() takes it
    own_segment: bool  # segment_tokens was set
    profile: str  # a latency profile's name, or "auto"
    record_every: int  # one in so many routed requests leaves a bundle; 0: none does
    spool: Path
    keep: int = 0  # one in so many routed requests has its loss predicted, and moves the price; 0: it stays
    keep_dense: int = 0  # of these one in so many has its true loss measured; 0: none
    keep_prices: tuple[float, float] | None = None  # bounds; None: the fit's


def from_environment(environment: Mapping[str, str], on_gpu: bool) -> ServingSettings | None:
    """The settings; None where the plug-in is not switched on.

    Errors: ConfigError for a variable or a configuration name that is not known, or a value out of range.
    """
    keeping = ("_KEEP", "_KEEP_DENSE", "_KEEP_PRICES")
    names = ("", "_CONFIG", "_CALIBRATION", "_LOSS", "_PROFILE", "_RECORD_EVERY", "_SPOOL", *keeping)
    known = {f"{SWITCH}{name}" for name in names}
    given = {name: value for name, value in environment.items() if name.startswith(SWITCH)}
    switch = given.get(SWITCH, "0")
    if switch not in ("0", "1"):
        raise ConfigError(f"{SWITCH}={switch!r} is not understood; set 1 to route prompts, or 0")
    if switch == "0":
        return None
    for name in given:
        if name not in known:
            told = f"known are {', '.join(sorted(known))}"
            raise ConfigError(f"{name} is no setting of the vLLM plug-in; {told}")
    spool = given.get(f"{SWITCH}_SPOOL")
    values = _values(given.get(f"{SWITCH}_CONFIG", "{}"))
    config, calibration = _config(values, on_gpu), given.get(f"{SWITCH}_CALIBRATION") or None
    asked = given.get(f"{SWITCH}_LOSS")
    loss = _loss(asked) if asked else None
    if loss is not None and (calibration or "price" in values or config.policy != "priced"):
        raise ConfigError(
            f"{SWITCH}_LOSS sets the price; leave {SWITCH}_CALIBRATION out, and of {SWITCH}_CONFIG price and policy"
        )
    keep = _count(
        given, "_KEEP", 0, "1 predicts the loss of every routed request, 10 of one in ten, 0 of none"
    )
    if keep and loss is None:
        raise ConfigError(f"{SWITCH}_KEEP keeps a loss target; set {SWITCH}_LOSS, such as 0.01")
    return ServingSettings(
        config=config,
        calibration=calibration,
        loss=loss,
        own_segment="segment_tokens" in values,
        profile=given.get(f"{SWITCH}_PROFILE", "auto"),
        record_every=_count(given, "_RECORD_EVERY", RECORD_EVERY, "1 records every routed request, 0 none"),
        spool=Path(spool).expanduser().resolve() if spool else paths.spool(),
        keep=keep,
        keep_dense=_count(
            given, "_KEEP_DENSE", 0, "50 measures the loss of one in 50 predicted ones, 0 of none"
        ),
        keep_prices=_prices(given.get(f"{SWITCH}_KEEP_PRICES")),
    )


def _values(text: str) -> dict[str, Any]:
    name = f"{SWITCH}_CONFIG"
    try:
        values = from_json(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}; write it like '{{\"price\": 0.25}}'") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name} {text!r} is no JSON object; write it like '{{\"price\": 0.25}}'")
    return values


def _config(values: dict[str, Any], on_gpu: bool) -> RouterConfig:
    try:
        return default_config(on_gpu, **values)
    except InputError as error:
        raise ConfigError(f"{SWITCH}_CONFIG: {error}") from None


def _loss(text: str) -> float:
    try:
        loss = float(text)
    except ValueError:
        raise ConfigError(f"{SWITCH}_LOSS={text!r} must be nats a token, such as 0.01") from None
    argument(Price, loss, f"{SWITCH}_LOSS")
    return loss


def _prices(text: str | None) -> tuple[float, float] | None:
    if not text:
        return None
    try:
        low, high = map(float, text.split(":"))
    except ValueError:
        low, high = math.inf, 0.0
    if not 0 < low <= high:
        raise ConfigError(
            f"{SWITCH}_KEEP_PRICES={text!r} must be two prices, the lower one first, such as 0.1:0.5"
        )
    return low, high


def _count(given: Mapping[str, str], name: str, default: int, means: str) -> int:
    text = given.get(f"{SWITCH}{name}", str(default))
    if not text.isdecimal() or int(text) > MOST_APART:
        raise ConfigError(f"{SWITCH}{name}={text!r} must be a whole number: {means}")
    return int(text)
