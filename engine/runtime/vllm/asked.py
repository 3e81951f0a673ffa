"""What one request asks for: flat keys of its sampling parameters' ``extra_args``, ``vllm_xargs`` over HTTP.

vLLM's HTTP server takes no nested values there, and makes 1 of true.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from typing import Any

from routesparse.engine.config import Price, argument
from routesparse.engine.errors import ConfigError, shortened

PREFIX = "routesparse_"


@dataclass(frozen=True)
class Asked:
    """One request's wishes."""

    route: bool = True
    loss: float | None = None  # nats a token to aim at; None: as the server's settings say
    record: bool = False  # this one, whatever its number

    @classmethod
    def of(cls, extra: Mapping[str, Any] | None) -> Asked:
        """Errors: ConfigError naming key, value and what is allowed."""
        known = {f"{PREFIX}{field.name}": field.name for field in fields(cls)}
        given = {key: value for key, value in (extra or {}).items() if str(key).startswith(PREFIX[:-1])}
        for key, value in given.items():
            if key not in known:
                raise ConfigError(f"{shortened(repr(key))} is not known; known are {', '.join(known)}")
            if known[key] == "loss":
                argument(Price, value, key)
            elif not isinstance(value, int) or value not in (0, 1):
                raise ConfigError(f"{key}={shortened(repr(value))} must be 1 or 0")
        return cls(**{known[key]: value for key, value in given.items()})
