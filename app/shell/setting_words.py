"""A run's or a job's settings in words, and what tells several of them apart."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from routesparse.app.ui import numbers
from routesparse.engine.errors import ConfigError
from routesparse.engine.jobs.kinds import CalibrateRequest, FitRequest, ProfileRequest
from routesparse.engine.jobs.request import Request, RunRequest
from routesparse.engine.models.rope import RopeScaling


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
    found = parts(values)
    first = found["policy"].removeprefix("policy ") + found.get("price", "").removeprefix("price")
    names = ("quality", "tau", "limit", "probe", "rope", "audit")
    usual = ("no time limit", "probe exact")
    return ", ".join([first, *(found[name] for name in names if name in found and found[name] not in usual)])


def asked(request: Request) -> str:
    """What a job was asked to do, in one line, the defaults included."""
    found = [f"model {Path(request.model).name}"]
    if isinstance(request, ProfileRequest):
        found += [f"probe {request.probe}", f"{'quick' if request.quick else 'full'} measurement"]
    elif isinstance(request, CalibrateRequest):
        found += [
            f"policy {request.policy}",
            f"{request.least_tokens:,} to {request.most_tokens:,} tokens",
            f"{request.fold_a} prompts to fit on and {request.fold_b} to take δ from per length",
        ]
    elif isinstance(request, FitRequest):
        found.append(f"{request.windows} windows or more of {request.tokens:,} tokens")
    elif isinstance(request, RunRequest):
        config = request.config()
        price, layer = (config.price, config.tau_layer) if config.policy == "priced" else (None, None)
        price = price if request.loss is None else None  # the worker's fit has it
        found += [
            *rope(request.rope).values(),
            *router(config.policy, price, config.tau, layer, request.quality).values(),
            *([] if request.loss is None else [f"loss at most {request.loss:g}"]),
            time_limit(request.budget),
            *break_even(request.break_even),
            "segment by the device" if request.segment is None else f"segment {request.segment:,}",
            f"calibration {request.calibration or 'none'}",
            f"probe {request.probe}",
            f"audit {request.audit}",
            "text kept" if request.keep_text else "hash only",
        ]
    return ", ".join(found)


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


def break_even(tokens: int | None) -> list[str]:
    """The length from which prompts are routed, where it was set: below the profile's, routing costs time."""
    if tokens is None:
        return []
    return [f"routed from {tokens:,} tokens on" if tokens else "routed at any length"]


def time_limit(budget: Any) -> str:
    """T_l of a layer, as given: "Tℓ 35 %" of dense, "Tℓ 800 µs", or that there is none."""
    return "no time limit" if numbers.is_missing(budget) else f"Tℓ {numbers.short_limit(budget)}"


def value(found: object) -> str:
    """A recorded setting as it is shown: a number without the digits that nobody chose, "–" for none."""
    if isinstance(found, float):
        return f"{found:.6g}"
    return "–" if found is None else str(found)
