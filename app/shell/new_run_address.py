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
    wishes = {
        "with_model": run.model,
        "with_policy": run.policy,
        "audit": run.audit_depth,
        "calibration": run.calibration,
        "limit": run.budget,
        "in_domain": run.domain,
        "tau": run.tau if run.tau_layer is None else run.tau_layer,
        "price": run.price,
        "quality": run.tuned_price,  # sets the price while it is there
        "segment": config.get("segment_tokens"),
        "break_even": config.get("break_even_tokens"),
        "probe_mode": run.probe_mode,
        "dense": "true" if run.dense_ms is not None else None,
        "rope": config.get("rope"),
    }
    return {name: value for name, value in wishes.items() if value is not None}


def of_request(request: RunRequest) -> dict[str, Any]:
    """The settings that a job was submitted with."""
    wishes = {
        "with_model": Path(request.model).name,
        "with_policy": request.policy,
        "audit": request.audit,
        "calibration": request.calibration,
        "limit": request.budget,
        "in_domain": request.domain,
        "tau": request.tau,
        "price": request.price,
        "quality": request.quality,  # sets the price while it is there
        "segment": request.segment,
        "break_even": request.break_even,
        "probe_mode": request.probe,
        "dense": "true" if request.measure_dense else None,
        "keep_text": None if request.keep_text else "false",
        "rope": request.rope,
    }
    return {name: value for name, value in wishes.items() if value is not None}
