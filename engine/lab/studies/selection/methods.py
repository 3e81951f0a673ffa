"""Every method of the study by name, with its settings, the most telling one first.

A published rule is one line of ``RULES``: where its class stands and which of its parameters the setting is. It is
imported when it is asked for. ``NAME@PARAMETER:VALUE,...`` is the rule with others of its parameters changed, such as
``xattention@stride:16``, or one of our own with other options, such as ``routesparse_fitted@tau_head:0.6``. What a rule
learns beforehand it learns on DOMAIN/TOKENS of development texts where ``NAME@DOMAIN/TOKENS`` says so.
"""

from __future__ import annotations

import importlib
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from typing import Any

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.errors import ConfigError
from routesparse.engine.lab import study
from routesparse.engine.lab.rivals.rule import Rule, Selection, View

BASELINES = "routesparse.engine.lab.rivals"
SHARES = (0.9, 0.95, 0.8, 0.7, 0.98)
BLOCKS = (32, 64, 16, 128, 8)
# method: module of the baselines, class, the setting's parameter, settings (int: the parameter counts something)
RULES: dict[str, tuple[str, str, str, tuple[float, ...]]] = {
    "flexprefill": ("flexprefill", "FlexPrefill", "gamma", SHARES),
    "xattention": ("xattention", "XAttention", "threshold", SHARES),
    "minference": ("minference", "MInference", "factor", (1.0, 0.5, 2.0, 0.25, 4.0)),
    "trianglemix": ("trianglemix", "TriangleMix", "dense_layers", (4, 2, 6)),
    "static_a_shape": ("static_a_shape", "StaticAShape", "local_tokens", (3_968, 1_920, 896, 7_936)),
    "window": ("static_a_shape", "Window", "tokens", (2_048, 1_024, 4_096, 512)),
    "pooled_top_k": ("pooled_top_k", "PooledTopK", "blocks", BLOCKS),
    "flashprefill": ("flashprefill", "FlashPrefill", "alpha", (0.18, 0.1, 0.3, 0.05, 0.5)),
    "stem": ("stem", "Stem", "start_share", (0.1, 0.2, 0.4, 0.05)),
    "prism": ("prism", "Prism", "share", (0.95, 0.9, 0.8, 0.98, 0.7)),
    "global_router": ("global_router", "GlobalRouter", "tau", (0.9, 0.8, 0.95, 0.7)),
    "indexer": ("indexer", "Indexer", "blocks", BLOCKS),
    "kascade": ("kascade", "Kascade", "share", (0.1, 0.2, 0.3, 0.05)),
    "proxy_attn": ("proxy_attn", "ProxyAttn", "gamma", SHARES),
    "skip_softmax": ("skip_softmax", "SkipSoftmax", "threshold", (0.003, 0.01, 0.001, 0.03, 0.0003)),
    "quoka": ("quoka", "Quoka", "blocks", BLOCKS),
    "random_blocks": ("random_blocks", "RandomBlocks", "density", (0.2, 0.4, 0.1)),
    "oracle_top_p": ("oracle", "OracleTopP", "share", SHARES),
    "oracle_floor": ("oracle", "OracleFloor", "theta", (0.002, 0.001, 0.004, 0.0005, 0.008)),
    "oracle_largest": ("oracle", "OracleLargest", "theta", (0.05, 0.02, 0.1, 0.01, 0.2)),
}


@dataclass(frozen=True)
class Everything:
    """The kernel on all blocks: what it differs from dense attention by is the noise of this study."""

    def __call__(self, view: View) -> Selection:
        return Selection(view.forced_and_causal[1])


@dataclass(frozen=True)
class Method:
    """One method at one setting."""

    name: str
    setting: float
    rule: Rule | None = None  # None: the product's own session
    options: dict[str, Any] = field(default_factory=dict)  # of its RouterConfig


# Our own policies and ablations: their options, the setting's name in RouterConfig, settings. The setting "budget" is a
# share of dense attention's time.
PRICES, TAUS = (0.5, 1.0, 0.25, 2.0, 0.35), (0.9, 0.8, 0.95, 0.7, 0.6)
BUDGETS = (1.0, 2.0, 0.5)
OURS: dict[str, tuple[dict[str, Any], str, tuple[float, ...]]] = {
    "routesparse": ({"policy": "priced"}, "price", PRICES),
    "routesparse_fitted": ({"policy": "priced"}, "price", PRICES),  # by the head floors of the model's fit
    "routesparse_no_fallback": ({"policy": "priced", "fallback": False}, "price", PRICES),
    "routesparse_per_head": ({"policy": "certified"}, "tau", TAUS),
    "routesparse_pooled_probe": ({"policy": "priced", "probe": "pooled"}, "price", PRICES),
    "routesparse_no_tail": ({"policy": "priced", "tail_tokens": 0}, "price", PRICES),
    "routesparse_per_head_launches": ({"policy": "priced", "launch": "per_head"}, "price", PRICES),
    "routesparse_segments": ({"policy": "priced", "segment_tokens": 4_096}, "price", PRICES),
    "routesparse_segments_1k": ({"policy": "priced", "segment_tokens": 1_024}, "price", PRICES),
    "routesparse_segments_16k": ({"policy": "priced", "segment_tokens": 16_384}, "price", PRICES),
    "routesparse_budgeted": ({"policy": "budgeted"}, "budget", BUDGETS),
    "routesparse_no_uncertainty": ({"policy": "budgeted", "alpha": 0.0}, "budget", BUDGETS),
}
LEARNING = ("minference", "routesparse_fitted")
INLINE: dict[str, tuple[Callable[[float], Rule], tuple[float, ...]]] = {
    "dense": (lambda _: lambda view: None, (1.0,)),
    "dense_kernel": (lambda _: Everything(), (1.0,)),
}


def takes_extras(name: str) -> bool:
    """Whether what every plan of ours reads can be left out of a method's plans."""
    return varied(name)[0] not in (*OURS, "dense", "dense_kernel")


def known() -> list[str]:
    """Names of all methods."""
    return [*INLINE, *OURS, *RULES]


def settings(name: str) -> tuple[float, ...]:
    """A method's own settings. Errors: ConfigError for an unknown name."""
    base = varied(name)[0]
    if base in OURS:
        return OURS[base][2]
    if name in INLINE:
        return INLINE[name][1]
    if base in RULES:
        return RULES[base][3]
    raise ConfigError(f"unknown method {name!r}; use some of {', '.join(known())}")


def find(name: str, setting: float, **others: Any) -> Method:
    """others: further parameters of a published rule, such as what its offline search found, or options of our own.

    Errors: ConfigError for an unknown name; ImportError or AttributeError where its file is not there.
    """
    if name in INLINE:
        return Method(name, setting, INLINE[name][0](setting))
    base, parameters = varied(name)
    if base in OURS:
        options, parameter, _ = OURS[base]
        _check(name, parameters, RouterConfig, parameter)
        value = LatencyBudget(setting, "fraction") if parameter == "budget" else setting
        return Method(name, setting, options={**options, **others, **parameters, parameter: value})
    if base in RULES:
        module, kind, parameter, known_settings = RULES[base]
        made = getattr(importlib.import_module(f"{BASELINES}.{module}"), kind)
        _check(name, parameters, made, parameter)
        number = int(setting) if isinstance(known_settings[0], int) else setting
        return Method(name, setting, made(**{parameter: number}, **others, **parameters))
    raise ConfigError(f"unknown method {name!r}; use some of {', '.join(known())}")


def _check(name: str, parameters: dict[str, float], made: type, parameter: str) -> None:
    if unknown := set(parameters) - ({one.name for one in fields(made)} - {parameter}):
        base = varied(name)[0]
        raise ConfigError(f"method {name!r}: {base} has no other parameter {', '.join(sorted(unknown))}")


def learnt_on(name: str) -> tuple[str, int] | None:
    """Domain and tokens of the texts that a method's name says it learns on. Errors: ConfigError."""
    base, _, told = name.partition("@")
    domain, slash, tokens = told.partition("/")
    if not slash:
        return None
    if base not in LEARNING or not tokens.isdigit():
        raise ConfigError(f"method {name!r} learns nothing; write {' or '.join(LEARNING)}@DOMAIN/TOKENS")
    return domain, int(tokens)


def varied(name: str) -> tuple[str, dict[str, float]]:
    """A rule's name and the parameters that the name changes. Errors: ConfigError."""
    base, _, told = name.partition("@")
    if not told or learnt_on(name):
        return base, {}
    try:
        pairs = [text.split(":") for text in told.split(",")]
        return base, {key: int(value) if value.isdigit() else float(value) for key, value in pairs}
    except ValueError:
        raise ConfigError(
            f"method {name!r} is not NAME@PARAMETER:NUMBER,...; write {base}@stride:16"
        ) from None


def rounds(wanted: Sequence[str]) -> list[list[tuple[str, float]]]:
    """Methods with settings, ``NAME`` or ``NAME=VALUE,VALUE``: every method's first setting, then the second ones.

    Errors: ConfigError.
    """
    by_name: dict[str, list[float]] = {}
    for text in wanted:
        name, _, values = text.partition("=")
        settings(name)
        try:
            asked = [float(value) for value in values.split(",")] if values else settings(name)
        except ValueError:
            raise ConfigError(f"method {text!r} has no numbers behind '='; write {name}=0.9,0.8") from None
        mine = by_name.setdefault(name, [])
        mine += [value for value in asked if value not in mine]
    longest = max(map(len, by_name.values()), default=0)
    return [[(n, s[place]) for n, s in by_name.items() if place < len(s)] for place in range(longest)]


def usable(wanted: Sequence[str], others: Mapping[str, dict[str, Any]]) -> list[Method]:
    """The methods of ``rounds`` that can be made, in that order; why another one can't is noted.

    others: see ``find``, by name. Errors: ConfigError.
    """
    made: list[Method] = []
    for name, setting in (one for turn in rounds(wanted) for one in turn):
        try:
            made.append(find(name, setting, **others.get(name, {})))
        except (ImportError, AttributeError, LookupError, TypeError) as error:
            study.note(f"{name}={setting:g} is left out: {type(error).__name__}: {error}")
    return made
