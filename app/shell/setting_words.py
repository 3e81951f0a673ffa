"""A run's or a job's settings in words, and what tells several of them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from routesparse.app.ui import numbers
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.kinds import CalibrateRequest, ProfileRequest
from routesparse.engine.jobs.request import RunRequest
from routesparse.engine.models.rope import RopeScaling

# What ``parts`` looks at.
NAMES = (
    *(
        "prompt_name",
        "tokens",
        "model",
        "policy",
        "price",
        "tuned_price",
        "tau",
        "tau_layer",
        "budget",
        "calibration",
        "probe_mode",
    ),
    *("audit_depth", "device", "domain", "rope"),
)


def parts(values: Mapping[str, Any]) -> dict[str, str]:
    """Setting -> words, those that matter most first. values: the fields of a RunRow, or a row of queries.runs."""
    scaling = values["rope"] if "rope" in values else recorded_rope(values["config_json"])
    price, layer = values["price"], values["tau_layer"]
    domain, calibration = values["domain"], values["calibration"]
    return {
        "prompt": values["prompt_name"],
        "tokens": f"{values['tokens']:,} tokens",
        "model": f"model {values['model']}",
        **rope(scaling),
        **router(values["policy"], price, values["tau"], layer, values.get("tuned_price")),
        "limit": time_limit(values["budget"]),
        "calibration": "no calibration" if numbers.is_missing(calibration) else f"calibration {calibration}",
        "probe": f"probe {values['probe_mode']}",
        "audit": f"audit {values['audit_depth']}",
        "device": numbers.device(values["device"]),
        "domain": "no domain" if numbers.is_missing(domain) else f"domain {domain}",
    }


def of_run(values: Mapping[str, Any]) -> str:
    """The router's settings of a run in one line: "priced 0.3, τ layer 0.70, audit rows"."""
    return in_one_line(parts(values), values["budget"], values["probe_mode"])


def in_one_line(found: Mapping[str, str], budget: Any, probe_mode: str) -> str:
    """The same of words that ``parts`` found."""
    limit = [] if numbers.is_missing(budget) else [found["limit"]]
    probe = [] if probe_mode == "exact" else [found["probe"]]
    rescaled = [found["rope"]] if "rope" in found else []
    return ", ".join([*_line(found), *limit, *probe, *rescaled, found["audit"]])


def of_request(request: RunRequest) -> str:
    """The same of a job, with its calibration."""
    found = router_asked(request)
    limit = [] if request.budget is None else [time_limit(request.budget)]
    probe = [] if request.probe == "exact" else [f"probe {request.probe}"]
    return ", ".join(
        [
            *_line(found),
            *limit,
            *probe,
            *rope(request.rope).values(),
            f"calibration {request.calibration or 'none'}",
            f"audit {request.audit}",
        ]
    )


def of_preparation(request: ProfileRequest | CalibrateRequest) -> list[str]:
    """What a job that prepares a model was asked to do."""
    model = f"model {Path(request.model).name}"
    if isinstance(request, ProfileRequest):
        return [model, f"probe {request.probe}", f"{'quick' if request.quick else 'full'} measurement"]
    return [
        model,
        f"policy {request.policy}",
        f"{request.least_tokens:,} to {request.most_tokens:,} tokens",
        f"{request.fold_a} prompts to fit on and {request.fold_b} to take δ from per length",
    ]


def differing(sides: Sequence[Mapping[str, str]]) -> list[str]:
    """Per side the words in which it differs from any other, "" where they are all alike."""
    # In the order of the side that has most settings, so that a price stands beside its policy.
    names = dict.fromkeys(name for side in sorted(sides, key=len, reverse=True) for name in side)
    told = [name for name in names if len({side.get(name) for side in sides}) > 1]
    return [" · ".join(side[name] for name in told if name in side) for side in sides]


def router(policy: str, price: Any, tau: float, tau_layer: Any, quality: Any = None) -> dict[str, str]:
    """How candidates are chosen, setting -> words. quality: the name of the target that set the price, where one did.

    Under the policy priced the layer's τ is what counts: the head's is a floor far below it.
    """
    if numbers.is_missing(tau_layer):
        return {"policy": f"policy {policy}", "tau": f"τ {numbers.threshold(tau)}"}
    priced = {} if numbers.is_missing(price) else {"price": f"price {price:g}"}
    target = {} if numbers.is_missing(quality) else {"quality": f"quality {quality}"}
    # The target stands beside the price that it set: a narrow column cuts what comes last.
    return {
        "policy": f"policy {policy}",
        **priced,
        **target,
        "tau": f"τ layer {numbers.threshold(tau_layer)}",
    }


def router_asked(request: RunRequest) -> dict[str, str]:
    """``router`` of what a job asks for, the defaults included."""
    config = request.config()
    priced = config.policy == "priced"
    price, layer = (config.price, config.tau_layer) if priced else (None, None)
    return router(config.policy, price, config.tau, layer, request.quality)


def rope(scaling: Any) -> dict[str, str]:
    """How positions were rescaled, setting -> words: "RoPE yarn ×4", with the original context where it is named, and
    what else was set; nothing where they were not. scaling: the JSON of a RopeScaling, as records and requests hold it.
    """
    if numbers.is_missing(scaling):
        return {}
    try:
        values = RopeScaling.parse(scaling).values
    except ConfigError:  # a record from another version: as it stands there
        return {"rope": f"RoPE {scaling}"}
    kind, factor = values.pop("rope_type"), values.pop("factor")
    original = values.pop("original_max_position_embeddings", None)
    of = "" if original is None else f" of {original:,} tokens"
    more = [
        name.replace("_", " ") + ("" if isinstance(value, list) else f" {value:g}")
        for name, value in sorted(values.items())
    ]
    own = f" ({', '.join(more)})" if more else ""
    return {"rope": f"RoPE {kind} ×{factor:g}{of}{own}"}


def recorded_rope(config_json: str) -> Any:
    """The scaling that a run's record holds; None where its positions were the model's own."""
    return json.loads(config_json).get("rope")


def time_limit(budget: Any) -> str:
    """T_l of a layer, as given: "Tℓ 35 %" of dense, "Tℓ 800 µs", or that there is none."""
    return "no time limit" if numbers.is_missing(budget) else f"Tℓ {numbers.short_limit(budget)}"


def _line(found: Mapping[str, str]) -> list[str]:
    """ "priced 0.3", the quality target that set this price, and τ."""
    policy = found["policy"].removeprefix("policy ")
    price = found.get("price", "").removeprefix("price ")
    target = [found["quality"]] if "quality" in found else []
    return [f"{policy} {price}".strip(), *target, found["tau"]]


def value(found: object) -> str:
    """A recorded setting as it is shown: a number without the digits that nobody chose, "–" for none."""
    if isinstance(found, float):
        return f"{found:.6g}"
    return "–" if found is None else str(found)
