"""The sizes that a model's configuration names, checked before anything is built from them."""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import dataclass
from typing import Annotated, Any, get_type_hints

from routesparse.engine.errors import ModelError, first_line
from routesparse.engine.models.rope import check_own as check_own_rope
from routesparse.engine.schema import POSITIVE, FieldError, Number, Whole, checked, in_file


@in_file(more=True)
@dataclass(frozen=True)
class _Shape:
    """The sizes in config.json that decide what a model takes, far beyond what models have."""

    num_hidden_layers: Annotated[int, Whole(1, 1 << 12)]
    num_attention_heads: Annotated[int, Whole(1, 1 << 16)]
    hidden_size: Annotated[int, Whole(1, 1 << 20)]
    intermediate_size: Annotated[int, Whole(1, 1 << 24)]
    max_position_embeddings: Annotated[int, Whole(1, 1 << 31)]
    vocab_size: Annotated[int, Whole(1, 1 << 24)]
    num_key_value_heads: Annotated[int, Whole(1, 1 << 16)] | None = None
    head_dim: Annotated[int, Whole(1, 1 << 16)] | None = None
    sliding_window: Annotated[int, Whole(0, 1 << 31)] | None = None


def check_config(config: dict[str, Any], file: str) -> None:
    """Its sizes and rotary positions. file: the name of what says them. Errors: ModelError."""
    try:
        _check_finite(config)
        checked(_Shape, config)
        check_own_rope(config)
    except FieldError as error:
        raise ModelError(f"{file} can't be read ({first_line(error)}); restore it") from None


def _check_finite(config: dict[str, Any]) -> None:
    """transformers writes what is no finite number as {"__float__": "NaN"}, and reads it so. Errors: FieldError."""
    within: list[tuple[str, Any]] = list(config.items())
    while within:
        field, value = within.pop()
        if isinstance(value, list):
            within += ((field, one) for one in value)
        elif isinstance(value, dict):
            if "__float__" in value:
                raise FieldError(field, value["__float__"], "a finite number")
            within += ((f"{field}.{name}", one) for name, one in value.items())


def check_said(said: dict[str, Any], fields: Iterable[tuple[str, str | None]]) -> None:
    """What another format says of them. fields: (its key, the name in config.json). Errors: FieldError, by the key."""
    kinds = {**get_type_hints(_Shape, include_extras=True), "rope_theta": Annotated[float, Number(POSITIVE)]}
    for key, field in fields:
        if key in said and field in kinds:
            checked(kinds[field], said[key], key)


def check_heads(name: str, heads: int, kv_heads: int) -> None:
    """Errors: ModelError where query heads can't share the KV heads evenly."""
    if heads % kv_heads:
        raise ModelError(f"model {name!r} has {heads} query heads over {kv_heads} KV heads, no multiple")


def check_vocabulary(name: str, largest_id: int, embedded: int | None) -> None:
    """Errors: ModelError for a token without an embedding. embedded: None where it is not known."""
    if embedded is not None and largest_id >= embedded:
        raise ModelError(
            f"model {name!r} embeds {embedded:,} tokens but its tokenizer has {largest_id + 1:,}; "
            "use the tokenizer that belongs to it"
        )
