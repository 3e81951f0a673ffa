"""What the environment says about routing inside vLLM; engine/README.md has the table.

vLLM hands a plug-in no arguments of its own, and its workers are other processes, so these are environment variables.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from routesparse.engine import paths
from routesparse.engine.config import RouterConfig, default_config
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
    profile: str  # a latency profile's name, or "auto"
    record_every: int  # one in so many routed requests leaves a bundle; 0: none does
    spool: Path


def from_environment(environment: Mapping[str, str], on_gpu: bool) -> ServingSettings | None:
    """The settings; None where the plug-in is not switched on.

    Errors: ConfigError for a variable or a configuration name that is not known, or a value out of range.
    """
    names = ("", "_CONFIG", "_CALIBRATION", "_PROFILE", "_RECORD_EVERY", "_SPOOL")
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
    return ServingSettings(
        config=_config(given.get(f"{SWITCH}_CONFIG", "{}"), on_gpu),
        calibration=given.get(f"{SWITCH}_CALIBRATION") or None,
        profile=given.get(f"{SWITCH}_PROFILE", "auto"),
        record_every=_record_every(given.get(f"{SWITCH}_RECORD_EVERY", str(RECORD_EVERY))),
        spool=Path(spool).expanduser().resolve() if spool else paths.spool(),
    )


def _config(text: str, on_gpu: bool) -> RouterConfig:
    name = f"{SWITCH}_CONFIG"
    try:
        values = from_json(text)
    except ValueError as error:
        raise ConfigError(f"{name} is not JSON: {error}; write it like '{{\"price\": 0.25}}'") from None
    if not isinstance(values, dict):
        raise ConfigError(f"{name} {text!r} is no JSON object; write it like '{{\"price\": 0.25}}'")
    try:
        return default_config(on_gpu, **values)
    except InputError as error:
        raise ConfigError(f"{name}: {error}") from None


def _record_every(text: str) -> int:
    if not text.isdecimal() or int(text) > MOST_APART:
        raise ConfigError(
            f"{SWITCH}_RECORD_EVERY={text!r} must be a whole number: 1 records every routed request, 0 none"
        )
    return int(text)
