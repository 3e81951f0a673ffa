"""What every value of a calibration file may be; FieldError (``fields.py``) names the first that may not."""

from __future__ import annotations

import dataclasses
import itertools
import math
from typing import Any

from routesparse.engine import fields
from routesparse.engine.calibration.drift import check_reference
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ConfigError
from routesparse.engine.fields import FieldError
from routesparse.engine.method import policy
from routesparse.engine.method.predictor import check_trees


def _check_buckets(value: Any, field: str) -> None:
    """Lengths ascend without overlap, so that every prompt has one bucket."""
    fields.items(_check_bucket)(value, field)
    for place in range(1, len(value)):
        before, least = value[place - 1]["max_tokens"], value[place]["min_tokens"]
        if least <= before:
            wanted = f"above {before}, where the bucket before it ends"
            raise FieldError(f"{field}[{place}].min_tokens", least, wanted)


def _check_bucket(value: Any, field: str) -> None:
    fields.record(
        {
            "min_tokens": fields.whole(1),
            "max_tokens": fields.whole(1),
            "prompts": fields.whole(),
            "deltas": fields.an_object,
        },
        {"documents": fields.whole(), "units": fields.whole(), "histogram": _check_histogram},
    )(value, field)
    fields.token_range(value, field)
    if value.get("documents", 0) > value["prompts"]:
        raise FieldError(f"{field}.documents", value["documents"], f"at most the {value['prompts']} prompts")
    _check_deltas(value["deltas"], value["prompts"], f"{field}.deltas")


def _check_deltas(value: dict[str, Any], prompts: int, field: str) -> None:
    """By level q: a difference of two masses, null for infinite, and never smaller at a higher q.

    Infinite is always allowed, being the more careful; finite needs q (K + 1)/K <= 1. K counts all domains of a
    robust calibration, whose delta needs as many prompts of each: this check is the weaker one.
    """
    known = {}
    for name, delta in value.items():
        try:
            level = float(name)
        except ValueError:
            level = math.nan
        if not 0 < level < 1 or f"{level:g}" != name:
            raise FieldError(f"{field}.{name}", delta, "named after a level q such as 0.95, between 0 and 1")
        wanted = "a number from 0 to 1, or null for infinite (too few prompts)"
        fields.optional(fields.number(0.0, 1.0, wanted))(delta, f"{field}.{name}")
        if delta is not None and (prompts == 0 or level * (prompts + 1) / prompts > 1.0):
            raise FieldError(f"{field}.{name}", delta, f"null: {prompts} prompts are too few for this level")
        known[level] = math.inf if delta is None else delta
    levels = sorted(known)
    for lower, higher in itertools.pairwise(levels):
        if known[higher] < known[lower]:
            least = "null" if math.isinf(known[lower]) else f"at least {known[lower]}"
            raise FieldError(
                f"{field}.{higher:g}", known[higher], f"{least}, as at the lower level {lower:g}"
            )


def _check_histogram(value: Any, field: str) -> None:
    if value == {}:
        return
    share = fields.number(0.0, 1.0 + 1e-9, "a number from 0 to 1")
    fields.record({"edges": fields.items(fields.number(), least=2), "share": fields.items(share)})(
        value, field
    )
    fields.items(share, len(value["edges"]) - 1)(value["share"], f"{field}.share")
    fields.ascending(value["edges"], f"{field}.edges")
    if min(abs(sum(value["share"]) - total) for total in (0.0, 1.0)) > 1e-6:
        raise FieldError(f"{field}.share", value["share"], "shares of one whole")


def check_stamp(value: Any, field: str) -> None:
    """Values that a RouterConfig or a constant may have. Missing and unknown ones are told when stamps are compared."""
    fields.an_object(value, field)
    for name, constant in policy.constants().items():
        if name in value:
            check = fields.whole() if isinstance(constant, int) else _RATE
            check(value[name], f"{field}.{name}")
    known = {f.name: f.default for f in dataclasses.fields(RouterConfig) if f.name in value}
    for name, default in known.items():
        found, kind = value[name], str if name == "budget" else type(default)
        real = isinstance(found, kind) or (kind is float and isinstance(found, int))
        if (kind is not bool and isinstance(found, bool)) or not (
            real or (name == "budget" and found is None)
        ):
            raise FieldError(f"{field}.{name}", found, f"of the kind of {default!r}")
    try:
        RouterConfig.from_dict({name: value[name] for name in known})
    except ConfigError as error:
        raise ValueError(f"{field} holds no possible configuration: {error}") from None


def _check_folds(value: Any, field: str) -> None:
    document = fields.record({"name": fields.text, "sha256": fields.text, "prompts": fields.whole()})
    fold = fields.record({"prompts": fields.whole(), "documents": fields.items(document)})
    fields.record({}, {"A": fold, "B": fold})(value, field)


_RATE = fields.number(0.0, wanted="a finite number of at least 0")
_RESIDUAL = fields.optional(fields.number(-1.0, 1.0, "a number from -1 to 1, or null"))
_SUMMARY = fields.record(  # of one prompt, see calibrate.fit._summary
    {
        "fold": fields.one_of("A", "B"),
        "domain": fields.text,
        "document": fields.text,
        "sha256": fields.text,
        "tokens": fields.whole(1),
        "units": fields.whole(),
        "mean": _RESIDUAL,
        "q95": _RESIDUAL,
        "max": _RESIDUAL,
        "density": fields.number(0.0, 1.0 + 1e-6, "a number from 0 to 1"),
    }
)
_CALIBRATION = fields.record(
    {
        "name": fields.text,
        "domain": fields.text,
        "gate_threshold": fields.optional(
            fields.number(fields.POSITIVE, 1.0, "a number above 0 and at most 1")
        ),
        "alpha": _RATE,
        "model": fields.text,
        "model_revision": fields.text,
        "library_hash": fields.text,
        "stamp": check_stamp,
        "buckets": _check_buckets,
        "documents": fields.items(fields.text),
        "seed": fields.whole(),
        "provenance": fields.an_object,
    },
    {
        "dtype": fields.text,
        "cost_model": fields.optional(
            fields.record(
                {
                    "profile": fields.text,
                    "backend": fields.text,
                    "row": _RATE,
                    "column": _RATE,
                    "dense": _RATE,
                }
            )
        ),
        "folds": _check_folds,
        "prompts": fields.items(_SUMMARY),
        "parts": fields.items(fields.text),
        "drift": fields.optional(check_reference),
        "predictor": fields.optional(check_trees),
    },
)


def check_calibration(value: Any, field: str) -> None:
    """Errors: FieldError for the first value that means nothing; lambda is null under the policy "priced" alone."""
    _CALIBRATION(value, field)
    policy_name, gate_threshold = value["stamp"].get("policy"), value["gate_threshold"]
    if (policy_name == "priced") != (gate_threshold is None):
        wanted = "null" if policy_name == "priced" else "a number"
        raise FieldError("gate_threshold", gate_threshold, f"{wanted} under the policy {policy_name!r}")
