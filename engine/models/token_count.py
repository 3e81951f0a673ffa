"""How long a prompt is for a model, and what it will need, without loading the model.

The web process counts with this before it submits a job: it reads config.json, and asks another process for tokens
(tokenizer_process.py).
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Literal

from routesparse.engine.models import tokenizer_process
from routesparse.engine.models.files import check_folder, read_config, resolve
from routesparse.engine.models.rope import RopeScaling
from routesparse.engine.models.sizes import check_config, check_heads, check_vocabulary
from routesparse.engine.prompts.text import LIKELY_CHARACTERS, PromptText, refuse_too_long

_FLOAT32_BYTES = 4
RUNTIME_BYTES = 512 << 20  # what Python with torch takes by itself, measured on Linux without a GPU


@dataclass(frozen=True)
class PromptSize:
    """A prompt as a model sees it."""

    tokens: int  # bos included
    max_tokens: int
    weight_bytes: int  # in float32
    activation_bytes: int  # of one layer in float32: hidden states, q, k, v, attention output and MLP
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


def chat(model: str, messages: Sequence[Mapping[str, str]]) -> str:
    """The prompt that a model's chat template makes of messages. Errors: PromptError, ModelError."""
    return tokenizer_process.chat(resolve(model)[0], messages)


def most_tokens(model: str, rope: RopeScaling | None = None) -> int:
    """How many tokens the model reads, bos included.

    Errors: ModelError, and ConfigError for a rope that does not fit the model.
    """
    folder, name = resolve(model)
    config = _config(folder)
    return int(config["max_position_embeddings"]) if rope is None else rope.fits(config, name)


def part_of(model: str, text: str, tokens: int, side: Literal["first", "last"]) -> str:
    """The first or last so many tokens of a text, bos included; all of a shorter one. Errors: ModelError.

    Text may be divided into other tokens without what was cut off, so it may be a few tokens shorter; never longer.
    """
    return tokenizer_process.part(resolve(model)[0], text, tokens, side)


def prompt_size(model: str, text: str, rope: RopeScaling | None = None) -> PromptSize:
    """Count the text's tokens. model: "demo" or a local folder (a hub id would be downloaded: not here).

    Errors: ModelError for a missing or unreadable model, PromptError where the beginning of a long text has more
    tokens than the model reads, ConfigError for a rope that does not fit the model.
    """
    return size_of(model, _tokens(model, "text", text, most_tokens(model, rope)), rope)


def size_of(model: str, tokens: int, rope: RopeScaling | None = None) -> PromptSize:
    """What a prompt of so many tokens needs. Errors: ModelError, and ConfigError for a rope that does not fit."""
    folder = resolve(model)[0]
    config = _config(folder)
    heads = config["num_attention_heads"]
    kv_heads = config.get("num_key_value_heads") or heads
    check_heads(folder.name, heads, kv_heads)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    per_token = 3 * (config["hidden_size"] + config["intermediate_size"]) + 2 * (heads + kv_heads) * head_dim
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
    folder = resolve(model)[0]
    beginning = text[: LIKELY_CHARACTERS * tokens]
    if tokenizer_process.count(folder, beginning)[0] >= tokens:
        return True
    return len(beginning) < len(text) and tokenizer_process.count(folder, text)[0] >= tokens


def refuse_before_loading(model: str, prompt: PromptText, rope: RopeScaling | None = None) -> None:
    """Refuse what would end this process or its work when torch and the weights are there: a broken folder, a text
    that is too long, a text that the tokenizer fails on.

    Errors: ModelError, PromptError, ConfigError for a rope that counts from more tokens than the model reads.
    """
    trained = check_folder(resolve(model)[0])[0]["max_position_embeddings"]
    _tokens(model, f"prompt {prompt.name!r}", prompt.text, trained if rope is None else rope.longest(trained))


def _tokens(model: str, what: str, text: str, max_tokens: int) -> int:
    """Bos included. Errors: ModelError, PromptError as ``refuse_too_long``."""
    folder, name = resolve(model)
    refuse_too_long(what, text, max_tokens, lambda piece: tokenizer_process.count(folder, piece)[0])
    _, tokens, largest_id = tokenizer_process.count(folder, text)
    check_vocabulary(name, largest_id, _config(folder)["vocab_size"])
    return tokens


def _config(folder: Path) -> dict[str, Any]:
    """Errors: ModelError."""
    config = read_config(folder)
    check_config(config, f"{folder.name}/config.json")
    return config


def _weight_bytes(folder: Path, config: dict[str, Any]) -> int:
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    width = 2 if config.get("dtype", config.get("torch_dtype")) in ("bfloat16", "float16") else _FLOAT32_BYTES
    return stored * _FLOAT32_BYTES // width
