"""What a served model's configuration says of its attention, for ``certify --served``.

NVIDIA's ``sparse_attention_config`` (BLASST, arXiv 2512.12087), in a checkpoint's config.json or by itself, as Model
Optimizer exports it and TensorRT-LLM reads it, whose own settings are one group without a name:

    {"config_groups": {NAME: {"algorithm": "skip_softmax", "ignore": [MODULE, ...], "targets": ...,
        "threshold_scale_factor": {"formula": "a * exp(b * target_sparsity)", "prefill": {"a": a, "b": b}, ...} or x,
        "target_sparsity": s or {"prefill": s, "decode": ...}}}, "producer": ...}
    lambda = a exp(b s) / n, or x / n          n: tokens of the prompt

No server needs ``targets``, ``producer`` and observed sparsities. Ours is the JSON of ROUTESPARSE_VLLM_CONFIG.
"""

from __future__ import annotations

import fnmatch
import math
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from routesparse.engine.config import default_config
from routesparse.engine.errors import ConfigError, shortened
from routesparse.engine.files.plain_files import few_values, read_bounded
from routesparse.engine.schema import POSITIVE, FieldError, Number, Share, Text, checked, from_json

TILE_KEYS = 128  # of Model Optimizer's kernel, whose tiles have 128 rows
_FIELD = "sparse_attention_config"
_Positive = Annotated[float, Number(POSITIVE)]
_Exponent = Annotated[float, Number(0.0, 100.0)]  # exp() stays finite


@dataclass(frozen=True)
class SkipSoftmaxServed:
    """Skip-softmax as a file says it. scale_factor: lambda times the prompt's tokens; told: where it comes from."""

    name: str
    scale_factor: float
    told: str
    ignore: tuple[str, ...]

    def of(self, tokens: int, modules: Sequence[tuple[int, str]]) -> tuple[float, frozenset[int]]:
        """lambda, and the layers that ``ignore`` names of modules, (layer, name) each. Errors: ConfigError."""
        if self.scale_factor >= tokens:  # a kernel would also skip keys above the running maximum
            least = f"a prompt of more than {self.scale_factor:,.0f} tokens"
            raise ConfigError(
                f"{self.name}: {self.told} needs {least}, this has {tokens:,}: the threshold must be below 1"
            )
        dense: set[int] = set()
        for pattern in self.ignore:
            if not (found := {layer for layer, name in modules if fnmatch.fnmatchcase(name, pattern)}):
                like = f"write it like {modules[0][1]!r}, * for any letters"
                raise ConfigError(f"{self.name}: ignore {pattern!r} names no attention layer; {like}")
            dense |= found
        return self.scale_factor / tokens, frozenset(dense)


def read_served(path: Path) -> SkipSoftmaxServed | dict[str, Any]:
    """What a checkpoint's folder or a JSON file serves; a dict: our settings by name. Errors: ConfigError."""
    file = path / "config.json" if path.is_dir() else path
    advice = f"pass a checkpoint with {_FIELD}, or the JSON of ROUTESPARSE_VLLM_CONFIG"
    try:
        values = from_json(few_values(read_bounded(file, 1 << 24).decode("utf-8")))
        if not isinstance(values, dict):
            raise ValueError(f"it is one {type(values).__name__}, not an object")
        if _FIELD in values or {"config_groups", "algorithm"} & set(values):
            return _skip_softmax(values.get(_FIELD, values), path.name)
    except FieldError as error:
        raise ConfigError(f"{path.name}: {error}; what is understood stands in engine/README.md") from None
    except (OSError, ValueError) as error:
        raise ConfigError(f"{shortened(file)} can't be read ({shortened(error)}); {advice}") from error
    if path.is_dir() or "model_type" in values:
        raise ConfigError(f"{path.name} has no {_FIELD}, so its attention is served dense; {advice}")
    default_config(False, **values)
    return values


def _skip_softmax(group: Any, name: str) -> SkipSoftmaxServed:
    """Errors: FieldError."""
    at = _FIELD
    if not isinstance(group, dict) or "algorithm" not in group:
        groups = _object(group, at, "config_groups", "producer").get("config_groups")
        at += ".config_groups"
        if not isinstance(groups, dict) or len(groups) != 1:
            raise FieldError(at, groups, "an object of one group, of skip_softmax")
        ((label, group),) = groups.items()
        at += f".{label}"
    _object(group, at, "algorithm", "threshold_scale_factor", "target_sparsity", "ignore", "targets")
    checked(Literal["skip_softmax"], group.get("algorithm"), f"{at}.algorithm")
    ignore = checked(tuple[Text, ...], group.get("ignore", ()), f"{at}.ignore")
    scale, target = group.get("threshold_scale_factor"), group.get("target_sparsity")
    at_scale = f"{at}.threshold_scale_factor"
    scale = scale if isinstance(scale, dict) else {"prefill": scale}
    curve = _object(scale, at_scale, "prefill", "decode", "formula").get("prefill")
    if not isinstance(curve, dict):
        factor = checked(_Positive, curve, f"{at_scale}.prefill")
        return SkipSoftmaxServed(name, factor, f"scale factor {factor:g}", ignore)
    checked(Literal["a * exp(b * target_sparsity)"], scale.get("formula"), f"{at_scale}.formula")
    _object(curve, f"{at_scale}.prefill", "a", "b", "min_observed_sparsity", "max_observed_sparsity")
    a = checked(_Positive, curve.get("a"), f"{at_scale}.prefill.a")
    b = checked(_Exponent, curve.get("b"), f"{at_scale}.prefill.b")
    target = target.get("prefill") if isinstance(target, dict) else target
    sparsity = checked(Share, target, f"{at}.target_sparsity.prefill")
    factor = a * math.exp(b * sparsity)
    return SkipSoftmaxServed(name, factor, f"scale factor a exp(b {sparsity:g}), a {a:g}, b {b:g}", ignore)


def _object(value: Any, at: str, *known: str) -> dict[str, Any]:
    """Errors: FieldError for what is no object, or has another field."""
    if not isinstance(value, dict):
        raise FieldError(at, value, "an object")
    for name in sorted(set(value).difference(known)):
        raise FieldError(f"{at}.{name}", value[name], f"left out; known are {', '.join(known)}")
    return value
