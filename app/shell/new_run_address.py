"""The address of New run with a run's or a job's settings filled in; what equals the default stays out of it."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any

from routesparse.engine.calibration.fitted import DEFAULT_LOSS
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.rows import RunRow


def of_run(run: RunRow) -> dict[str, Any]:
    """The settings of a stored run."""
    config = json.loads(run.config_json)
    return _address(
        {
            "with_model": run.model,
            "audit": run.audit_depth,
            "tau": run.tau if run.tau_layer is None else run.tau_layer,
            # Sets the price while it is there.
            "quality": run.tuned_price if run.loss_target is None else quality_of(run.loss_target),
            "segment": config.get("segment_tokens"),
            "break_even": config.get("break_even_tokens"),
            "dense": run.dense_ms is not None,
            "rope": config.get("rope"),
        },
        run,
    )


def of_request(request: RunRequest) -> dict[str, Any]:
    """The settings that a job was submitted with."""
    names = ("audit", "tau", "segment", "break_even", "rope", "trace")
    own = {name: getattr(request, name) for name in names}
    own["quality"] = request.quality if request.loss is None else quality_of(request.loss)
    own |= {"with_model": Path(request.model).name, "dense": request.measure_dense}
    return _address(own | {"keep_text": None if request.keep_text else "false"}, request)


def quality_of(loss: float) -> str:
    """What New run's Quality calls a loss target."""
    return f"Loss at most {loss:g}" + (" (default)" if loss == DEFAULT_LOSS else "")


def loss_of(quality: str) -> float | None:
    """The inverse; None for another quality."""
    found = re.fullmatch(r"Loss at most ([\d.e+-]+)( \(default\))?", quality)
    try:
        return float(found[1]) if found else None
    except ValueError:
        return None


def _address(own: dict[str, Any], asked: Any) -> dict[str, Any]:
    """own: what a run and a request name differently."""
    wishes = own | {
        "with_policy": asked.policy,
        "calibration": asked.calibration,
        "limit": asked.budget,
        "in_domain": asked.domain,
        "price": asked.price,
        "probe_mode": asked.probe if isinstance(asked, RunRequest) else asked.probe_mode,
        "dense": "true" if own["dense"] else None,
    }
    return {name: value for name, value in wishes.items() if value is not None}
