"""How long a prompt is for a model, and what it will need, without loading the model.

Only JSON files and the ``tokenizers`` package are read; the web process counts with this before it submits a job.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from pathlib import Path
from typing import Any, Literal

from routesparse.engine import fields
from routesparse.engine.errors import ModelError
from routesparse.engine.models.files import check_folder, first_line, resolve
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.plain_files import read_bounded, state_of
from routesparse.engine.prompts import LIKELY_CHARACTERS, PromptText, refuse_too_long

_FLOAT32_BYTES = 4
_SIZES = ("num_attention_heads", "hidden_size", "intermediate_size", "num_hidden_layers")
_OPTIONAL_SIZES = ("num_key_value_heads", "head_dim")
_MOST_JSON_BYTES = 1 << 24
_MOST_TOKENIZER_BYTES = 1 << 28
RUNTIME_BYTES = 512 << 20  # what Python with torch takes by itself, measured on Linux without a GPU


@dataclass(frozen=True)
class PromptSize:
    """A prompt as a model sees it."""

    tokens: int  # bos included
    max_tokens: int
    weight_bytes: int  # in float32
    activation_bytes: (
        int  # of one layer: hidden states, queries, keys, values, attention output and MLP, in float32
    )
    heads: int
    kv_heads: int
    head_dim: int
    layers: int

    @property
    def gpu_memory_bytes(self) -> int:
        """What a prefill needs of a GPU, roughly: the same in bfloat16."""
        return RUNTIME_BYTES + (self.weight_bytes + self.activation_bytes) // 2

    @property
    def memory_bytes(self) -> int:
        """What a prefill needs on a CPU, roughly: the runtime, the weights and one layer's activations."""
        return RUNTIME_BYTES + self.weight_bytes + self.activation_bytes

    @property
    def cache_bytes(self) -> int:
        """What the keys and values of the prompt take on a CPU while an analysis continues it (analyze.py).

        The routed prefill's and the dense one's are never there together; neither is kept where it would take much of
        the free memory.
        """
        return 2 * self.layers * self.kv_heads * self.head_dim * self.tokens * _FLOAT32_BYTES


def most_tokens(model: str, rope: RopeScaling | None = None) -> int:
    """How many tokens the model reads, bos included.

    Errors: ModelError, and ConfigError for a rope that does not fit the model.
    """
    folder, name = resolve(model)
    config = _files(folder)[0]
    return int(config["max_position_embeddings"]) if rope is None else rope.fits(config, name)


def part_of(model: str, text: str, tokens: int, side: Literal["first", "last"]) -> str:
    """The first or last so many tokens of a text, bos included; all of a shorter one. Errors: ModelError.

    Text may be divided into other tokens without what was cut off, so it may be a few tokens shorter; never longer.
    """
    _, tokenizer, has_bos = _files(resolve(model)[0])
    wanted, window = max(1, tokens - has_bos), text
    characters = LIKELY_CHARACTERS * wanted
    while True:
        window = text[:characters] if side == "first" else text[max(0, len(text) - characters) :]
        offsets = tokenizer.encode(window, add_special_tokens=False).offsets
        # A word that the window cuts may count for more tokens than it has.
        if len(offsets) > wanted + 1 or len(window) == len(text):
            break
        characters *= 2
    for size in range(wanted, 0, -1):
        if size >= len(offsets):
            return window
        part = window[: offsets[size - 1][1]] if side == "first" else window[offsets[-size][0] :]
        if len(tokenizer.encode(part, add_special_tokens=False).ids) <= wanted:
            return part
    return part


def prompt_size(model: str, text: str, rope: RopeScaling | None = None) -> PromptSize:
    """Count the text's tokens. model: "demo" or a local folder (a hub id would be downloaded: not here).

    Errors: ModelError for a missing or unreadable model, PromptError where the beginning of a long text has more
    tokens than the model reads, ConfigError for a rope that does not fit the model.
    """
    _, tokenizer, has_bos = _files(resolve(model)[0])
    max_tokens = most_tokens(model, rope)
    refuse_too_long("text", text, max_tokens, lambda piece: _tokens(tokenizer, piece))
    return size_of(model, _tokens(tokenizer, text) + has_bos, rope)


def size_of(model: str, tokens: int, rope: RopeScaling | None = None) -> PromptSize:
    """What a prompt of so many tokens needs. Errors: ModelError, and ConfigError for a rope that does not fit."""
    folder = resolve(model)[0]
    config = _files(folder)[0]
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads") or 1
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    per_token = (
        3 * config["hidden_size"] + 2 * (heads + kv_heads) * head_dim + 3 * config["intermediate_size"]
    )
    return PromptSize(
        tokens=tokens,
        max_tokens=most_tokens(model, rope),
        weight_bytes=_weight_bytes(folder, config),
        activation_bytes=tokens * per_token * _FLOAT32_BYTES,
        heads=heads,
        kv_heads=kv_heads,
        layers=config["num_hidden_layers"],
        head_dim=head_dim,
    )


def holds(model: str, text: str, tokens: int) -> bool:
    """Whether a text has so many tokens; only its beginning is read where that is enough. Errors: ModelError."""
    tokenizer = _files(resolve(model)[0])[1]
    beginning = text[: LIKELY_CHARACTERS * tokens]
    if _tokens(tokenizer, beginning) >= tokens:
        return True
    return len(beginning) < len(text) and _tokens(tokenizer, text) >= tokens


def refuse_before_loading(model: str, prompt: PromptText, rope: RopeScaling | None = None) -> None:
    """Refuse a prompt that can't fit before torch and the weights are loaded.

    Errors: ModelError, PromptError, ConfigError for a rope that counts from more tokens than the model reads.
    """
    folder = resolve(model)[0]
    max_tokens = check_folder(folder).get("max_position_embeddings")
    if isinstance(max_tokens, int):
        refuse_too_long(
            f"prompt {prompt.name!r}",
            prompt.text,
            max_tokens if rope is None else rope.longest(max_tokens),
            lambda piece: _tokens(_files(folder)[1], piece),
        )


def _tokens(tokenizer: Any, text: str) -> int:
    return len(tokenizer.encode(text, add_special_tokens=False).ids)


def _files(folder: Path) -> tuple[dict[str, Any], Any, int]:
    """config.json, the tokenizer and whether it has bos; read again when a file has changed. Errors: ModelError."""
    names = ("config.json", "tokenizer_config.json", "tokenizer.json")
    return _read(folder, tuple(state_of(folder / name) for name in names))


@lru_cache(maxsize=8)
def _read(folder: Path, state: tuple[Any, ...]) -> tuple[dict[str, Any], Any, int]:
    """state is part of the key."""
    # Imported here: pages that count nothing don't wait for it.
    from tokenizers import Tokenizer

    try:
        config = fields.read_json(folder / "config.json", _MOST_JSON_BYTES)
        settings = fields.read_json(folder / "tokenizer_config.json", _MOST_JSON_BYTES)
        for name in ("max_position_embeddings", *_SIZES):
            fields.whole(1, 1 << 31)(config[name], name)
        for name in _OPTIONAL_SIZES:
            fields.optional(fields.whole(1, 1 << 31))(config.get(name), name)
        fields.an_object(settings, "tokenizer_config")
        content = read_bounded(folder / "tokenizer.json", _MOST_TOKENIZER_BYTES)
        tokenizer = Tokenizer.from_str(content.decode("utf-8"))
    except Exception as error:
        raise ModelError(
            f"config or tokenizer of model {folder.name!r} can't be read ({first_line(error)}); restore its files"
        ) from error
    return config, tokenizer, int(bool(settings.get("bos_token")))


def _weight_bytes(folder: Path, config: dict[str, Any]) -> int:
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    width = 2 if config.get("dtype", config.get("torch_dtype")) in ("bfloat16", "float16") else _FLOAT32_BYTES
    return stored * _FLOAT32_BYTES // width
