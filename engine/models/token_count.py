"""How long a prompt is for a model, and what it will need, without loading the model.

Only JSON files and the ``tokenizers`` package are read; the web process counts with this before it submits a job.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any, Literal

from routesparse.engine.errors import ModelError, PromptError
from routesparse.engine.models.files import resolve

_FLOAT32_BYTES = 4
_HEAD_CHARACTERS = 8  # per token that the model reads: more text than that rarely fits
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
    def memory_bytes(self) -> int:
        """What a prefill needs on a CPU, roughly: the runtime, the weights and one layer's activations."""
        return RUNTIME_BYTES + self.weight_bytes + self.activation_bytes


def most_tokens(model: str) -> int:
    """How many tokens the model reads, bos included. Errors: ModelError."""
    return int(_files(resolve(model)[0])[0]["max_position_embeddings"])


def part_of(model: str, text: str, tokens: int, side: Literal["first", "last"]) -> str:
    """The first or last so many tokens of a text, bos included; all of a shorter one. Errors: ModelError.

    Text may be divided into other tokens without what was cut off, so it may be a few tokens shorter; never longer.
    """
    _, tokenizer, has_bos = _files(resolve(model)[0])
    wanted, window = max(1, tokens - has_bos), text
    characters = _HEAD_CHARACTERS * wanted
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


def prompt_size(model: str, text: str) -> PromptSize:
    """Count the text's tokens. model: "demo" or a local folder (a hub id would be downloaded: not here).

    Errors: ModelError for a missing or unreadable model, PromptError where the beginning of a long text has more
    tokens than the model reads: counting 16 MB would take a minute and gigabytes.
    """
    folder = resolve(model)[0]
    config, tokenizer, has_bos = _files(folder)
    max_tokens = int(config["max_position_embeddings"])
    head = text[: _HEAD_CHARACTERS * max_tokens]
    if len(head) < len(text):
        tokens = len(tokenizer.encode(head, add_special_tokens=False).ids)
        # A word cut at the end may count for a little more than in the whole text.
        if tokens > 1.01 * max_tokens:
            raise PromptError(
                f"the first {len(head):,} characters alone have {tokens:,} tokens, the model reads at most "
                f"{max_tokens:,}; shorten the prompt"
            )
    tokens = len(tokenizer.encode(text, add_special_tokens=False).ids) + has_bos
    heads, kv_heads = config["num_attention_heads"], config.get("num_key_value_heads", 1)
    head_dim = config.get("head_dim") or config["hidden_size"] // heads
    per_token = (
        3 * config["hidden_size"] + 2 * (heads + kv_heads) * head_dim + 3 * config["intermediate_size"]
    )
    return PromptSize(
        tokens=tokens,
        max_tokens=max_tokens,
        weight_bytes=_weight_bytes(folder, config),
        activation_bytes=tokens * per_token * _FLOAT32_BYTES,
        heads=heads,
        kv_heads=kv_heads,
        layers=config["num_hidden_layers"],
        head_dim=head_dim,
    )


@cache
def _files(folder: Path) -> tuple[dict[str, Any], Any, int]:
    # Imported here: pages that count nothing don't wait for it.
    from tokenizers import Tokenizer

    try:
        config = json.loads((folder / "config.json").read_text("utf-8"))
        settings = json.loads((folder / "tokenizer_config.json").read_text("utf-8"))
        tokenizer = Tokenizer.from_file(str(folder / "tokenizer.json"))
    except Exception as error:
        raise ModelError(
            f"the tokenizer of model {folder.name!r} can't be read ({type(error).__name__}); restore its files"
        ) from error
    return config, tokenizer, int(bool(settings.get("bos_token")))


def _weight_bytes(folder: Path, config: dict[str, Any]) -> int:
    stored = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
    width = 2 if config.get("dtype", config.get("torch_dtype")) in ("bfloat16", "float16") else _FLOAT32_BYTES
    return stored * _FLOAT32_BYTES // width
