"""The RouteSparse engine: the method, the store, the evaluation and the command line.

``from routesparse.engine import RouterConfig, route`` is the public Python interface. Its names resolve on
first use: importing the package costs nothing, and the web process, which imports it, never imports torch.
"""

from __future__ import annotations

import importlib
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from routesparse.engine.certification.certify import certify as certify
    from routesparse.engine.certification.certify import certify_attention as certify_attention
    from routesparse.engine.config import LatencyBudget as LatencyBudget
    from routesparse.engine.config import RouterConfig as RouterConfig
    from routesparse.engine.runtime.route import route as route
    from routesparse.engine.store.snapshot import snapshot as snapshot

_HOMES = {
    "LatencyBudget": "routesparse.engine.config",
    "RouterConfig": "routesparse.engine.config",
    "certify": "routesparse.engine.certification.certify",
    "certify_attention": "routesparse.engine.certification.certify",
    "route": "routesparse.engine.runtime.route",
    "snapshot": "routesparse.engine.store.snapshot",
}

__all__ = ["LatencyBudget", "RouterConfig", "certify", "certify_attention", "route", "snapshot"]


def __getattr__(name: str) -> Any:
    if name not in _HOMES:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(importlib.import_module(_HOMES[name]), name)


def __dir__() -> list[str]:
    return sorted({*globals(), *__all__})
