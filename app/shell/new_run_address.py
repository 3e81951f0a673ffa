"""The address of New run with a run's or a job's settings filled in; what equals the default stays out of it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

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
            "quality": run.tuned_price,  # sets the price while it is there
            "segment": config.get("segment_tokens"),
            "break_even": config.get("break_even_tokens"),
            "dense": run.dense_ms is not None,
            "rope": config.get("rope"),
        },
        run,
    )


def of_request(request: RunRequest) -> dict[str, Any]:
    """The settings that a job was submitted with."""
    names = ("audit", "tau", "quality", "segment", "break_even", "rope")
    own = {name: getattr(request, name) for name in names}
    own |= {"with_model": Path(request.model).name, "dense": request.measure_dense}
    return _address(own | {"keep_text": None if request.keep_text else "false"}, request)


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
