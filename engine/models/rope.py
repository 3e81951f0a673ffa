"""Contexts beyond what a model was trained on, by rescaled rotary positions (RoPE). No torch.

A rotary pair i turns by theta_i = b^(-2i/d) a token (b: rope_theta, d: rotary dimensions). With a factor s:
    linear    Position Interpolation (Chen et al. 2023): every theta_i / s
    yarn      YaRN (Peng et al. 2024): theta_i / s where the pair turns less than beta_slow times within the original
              context, theta_i where it turns more than beta_fast times, a ramp between; queries and keys times
              attention_factor, by default 0.1 ln s + 1
    longrope  LongRoPE (Ding et al. 2024): theta_i / long_factor[i] for prompts longer than the original context,
              theta_i / short_factor[i] for others; the lists come from that paper's search, for one model
transformers computes the angles. Here the request is checked, because transformers only warns of wrong numbers.

Another scaling is another model as far as evidence goes: attention masses change with it. So the revision changes
(``load.py``), and a calibration or a tuned price made without it, or with another one, is refused.
LongRoPE chooses its list by the tokens of a forward pass: a prompt that decoding carries over the original context
keeps keys of the short list, with dense attention as with routed.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Annotated, Any, Literal

from routesparse.engine.errors import ConfigError, ModelError, shortened
from routesparse.engine.schema import FILLED, POSITIVE, FieldError, Number, Whole, checked, from_json, in_file

MOST_FACTOR = 1024.0
MOST_TOKENS = 1 << 31
_WHY_REFUSED = {
    "default": "it changes nothing; leave it out",
    "dynamic": "its angles change with the prompt's length, so that cached keys no longer fit; pass yarn",
    "llama3": "it belongs to models trained with it, and their own configuration has it",
    "proportional": "it belongs to models trained with it, and their own configuration has it",
}
_Kind = Literal["default", "linear", "dynamic", "yarn", "longrope", "llama3", "proportional", "su"]
_Positive = Annotated[float, Number(POSITIVE)]
_Factors = Annotated[tuple[_Positive, ...], FILLED]


@dataclass(frozen=True, kw_only=True)
class _Linear:
    """What a request may hold; the defaults are not read, transformers has its own."""

    rope_type: str
    factor: Annotated[float, Number(1.0, MOST_FACTOR)]
    original_max_position_embeddings: Annotated[int, Whole(1, MOST_TOKENS)] = MOST_TOKENS


@dataclass(frozen=True, kw_only=True)
class _Yarn(_Linear):
    attention_factor: _Positive = 1.0
    beta_fast: _Positive = 32.0
    beta_slow: _Positive = 1.0


@dataclass(frozen=True, kw_only=True)
class _LongRope(_Linear):
    short_factor: _Factors
    long_factor: _Factors
    attention_factor: _Positive = 1.0


_REQUESTS: dict[str, type[_Linear]] = {"linear": _Linear, "yarn": _Yarn, "longrope": _LongRope}
KINDS = tuple(_REQUESTS)


@in_file(more=True)
@dataclass(frozen=True)
class _Own:
    """What of a model's own rotary positions is computed with."""

    rope_type: _Kind | None = None
    type: _Kind | None = None  # as it was called before
    rope_theta: _Positive | None = None
    factor: _Positive | None = None
    attention_factor: _Positive | None = None
    beta_fast: _Positive | None = None
    beta_slow: _Positive | None = None
    low_freq_factor: _Positive | None = None
    high_freq_factor: _Positive | None = None
    partial_rotary_factor: Annotated[float, Number(POSITIVE, 1.0)] | None = None
    original_max_position_embeddings: Annotated[int, Whole(1, MOST_TOKENS)] | None = None
    short_factor: tuple[_Positive, ...] | None = None
    long_factor: tuple[_Positive, ...] | None = None


@dataclass(frozen=True)
class RopeScaling:
    """A checked request: what transformers calls rope_parameters, without the model's own rope_theta."""

    text: str  # canonical JSON, as records keep it and --rope takes it

    @classmethod
    def parse(cls, text: str) -> RopeScaling:
        """From JSON such as {"rope_type": "yarn", "factor": 4.0}. Errors: ConfigError."""
        try:
            values = from_json(text)
        except FieldError as error:
            raise ConfigError(f"rope.{error}") from None
        except ValueError:
            values = None
        if not isinstance(values, dict):
            raise ConfigError(
                f'rope {shortened(text)!r} is no JSON object; pass one such as {{"rope_type": "yarn", "factor": 4.0}}'
            )
        return cls.of(values)

    @classmethod
    def of(cls, values: dict[str, Any]) -> RopeScaling:
        """From its fields. Errors: ConfigError for an unknown kind or field, or a number outside its meaning."""
        kind = values.get("rope_type")
        if not isinstance(kind, str) or kind not in _REQUESTS:
            why = _WHY_REFUSED.get(str(kind), "it is unknown")
            raise ConfigError(f"rope_type {shortened(kind)!r}: {why} (supported: {', '.join(KINDS)})")
        try:
            found = checked(_REQUESTS[kind], values, "rope")
            if isinstance(found, _Yarn) and found.beta_fast <= found.beta_slow:
                raise FieldError("rope.beta_fast", found.beta_fast, f"above beta_slow, {found.beta_slow:g}")
        except FieldError as error:
            raise ConfigError(str(error)) from None
        canonical = {name: _canonical(name, value) for name, value in values.items()}
        return cls(json.dumps(canonical, sort_keys=True))

    @property
    def values(self) -> dict[str, Any]:
        """The fields."""
        return dict(json.loads(self.text))

    def longest(self, trained: int) -> int:
        """Tokens that a model reads with it. trained: without it. Errors: ConfigError."""
        original = self.values.get("original_max_position_embeddings", trained)
        if original > trained:
            raise ConfigError(
                f"rope.original_max_position_embeddings {original:,} is more than the model reads, {trained:,}"
            )
        return int(self.values["factor"] * original)

    def fits(self, config: dict[str, Any], name: str) -> int:
        """Tokens that a model reads with it, from its config.json alone; ``extend`` decides as much when it is loaded.

        Errors: those of ``extend``.
        """
        own = config.get("rope_parameters")
        if not isinstance(own, dict):
            # As configurations of before transformers 5 say it; where they leave the base out, their family has one.
            older = config.get("rope_scaling")
            older = older if isinstance(older, dict) else {}
            own = {"rope_theta": config.get("rope_theta", 0.0), **older}
            own["rope_type"] = own.get("rope_type", own.get("type", "default"))
        stand_in = SimpleNamespace(**{"head_dim": None, **config, "rope_parameters": own})
        self.extend(stand_in, name)
        return int(stand_in.max_position_embeddings)

    def extend(self, config: Any, name: str) -> None:
        """Put it into a transformers configuration before the model is made. name: the model's, for messages.

        Errors: ModelError where the model rescales its positions already or has none of one kind; ConfigError.
        """
        own = getattr(config, "rope_parameters", None) or {}
        if "rope_theta" not in own:
            raise ModelError(
                f"model {name!r} has no rotary positions, or several kinds by layer; leave rope out"
            )
        if own.get("rope_type", "default") != "default":
            raise ModelError(
                f"model {name!r} has rotary positions of the kind {own['rope_type']!r} already, which a second scaling "
                "would undo; load it without rope"
            )
        _check_lists(self.values, config, own, name)
        trained = int(config.max_position_embeddings)
        original = self.values.get("original_max_position_embeddings", trained)
        config.max_position_embeddings = self.longest(trained)
        made = {**own, **self.values}
        if made["rope_type"] == "linear":
            made.pop("original_max_position_embeddings", None)
        else:
            made["original_max_position_embeddings"] = original
            if hasattr(config, "original_max_position_embeddings"):
                # Where a family has this field of its own, transformers prefers it.
                config.original_max_position_embeddings = original
        config.rope_parameters = made


def check_own(config: dict[str, Any]) -> None:
    """The rotary positions that a config.json has, as transformers computes angles from them. Errors: FieldError."""
    theta = config.get("rope_theta")
    for field in ("rope_parameters", "rope_scaling"):
        own = config.get(field)
        if own is None:
            continue
        checked(dict[str, Any], own, field)
        # By kind of layer, where there are several kinds.
        kinds = {f"{field}.{name}": one for name, one in own.items() if isinstance(one, dict)} or {field: own}
        for name, one in kinds.items():
            given = checked(_Own, one, name)
            pairs = _pairs(SimpleNamespace(**{"head_dim": None, **config}), {**config, **one})
            for part, factors in (("short_factor", given.short_factor), ("long_factor", given.long_factor)):
                if factors is not None and len(factors) != pairs:
                    raise FieldError(f"{name}.{part}", factors, f"a list of {pairs} numbers, one a pair")
    if theta is not None:
        checked(Annotated[float, Number(POSITIVE)], theta, "rope_theta")


def revision_with(revision: str, config: Any, config_of_files: Any) -> str:
    """The revision of weights with the positions of ``config``: the files' own where nothing was changed.

    revision: 16 hex digits of the files (``files.revision_of``). Both configurations are transformers'.
    """
    here, there = (getattr(one, "rope_parameters", None) or {} for one in (config, config_of_files))
    if here == there:
        return revision
    told = f"{revision} {json.dumps(here, sort_keys=True)}"
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _canonical(name: str, value: Any) -> Any:
    """A field as records keep it: a factor of 4 is one of 4.0, and the same model."""
    if name in ("rope_type", "original_max_position_embeddings"):
        return value
    return [float(one) for one in value] if isinstance(value, list) else float(value)


def _pairs(config: Any, own: dict[str, Any]) -> int:
    """Rotary pairs of a head."""
    head_dim = getattr(config, "head_dim", None) or config.hidden_size // config.num_attention_heads
    return int(head_dim * (own.get("partial_rotary_factor") or 1.0)) // 2


def _check_lists(values: dict[str, Any], config: Any, own: dict[str, Any], name: str) -> None:
    pairs = _pairs(config, own)
    for field in ("short_factor", "long_factor"):
        if field in values and len(values[field]) != pairs:
            raise ConfigError(
                f"rope.{field} has {len(values[field])} numbers, model {name!r} has {pairs} rotary pairs; pass {pairs}"
            )
