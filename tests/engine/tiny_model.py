"""A tiny random Llama with one token per byte, saved as a model folder. CPU, under a second."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path

import torch
import transformers
from tokenizers import Tokenizer, decoders, models, pre_tokenizers

from routesparse.engine.profiles.shape import AttentionShape
from tests.engine import shipped_profile

LIMIT = 1_000  # tokens that it reads
SHAPE = AttentionShape(torch.device("cpu"), torch.float32, head_dim=16, heads=2, kv_heads=1)


def save(folder: Path, seed: int = 0, poison: float | None = None) -> Path:
    """Write model and tokenizer; ``poison`` goes into one query weight of the second layer."""
    torch.manual_seed(seed)
    config = transformers.LlamaConfig(
        vocab_size=260,
        hidden_size=32,
        intermediate_size=48,
        num_hidden_layers=2,
        num_attention_heads=SHAPE.heads,
        num_key_value_heads=SHAPE.kv_heads,
        head_dim=SHAPE.head_dim,
        max_position_embeddings=LIMIT,
        initializer_range=0.2,
    )
    model = transformers.LlamaForCausalLM(config)
    if poison is not None:
        with torch.no_grad():
            model.model.layers[1].self_attn.q_proj.weight[0, 0] = poison
    model.save_pretrained(folder)
    tokenizer().save_pretrained(folder)
    return folder


def save_profiled(root: Path) -> Path:
    """``save`` as root / "tiny", and beside it a latency profile that fits it; the model's folder."""
    folder = save(root / "tiny")
    # Dense tiles are made dear: on a few hundred tokens no sparse plan would be chosen.
    costs = {"row_us": 0.1, "tile_us": 1.0, "column_us": 0.1, "dense_row_us": 0.0, "dense_tile_us": 3.0}
    replace(shipped_profile.of(SHAPE), **costs).save(root / "profiles")
    return folder


def tokenizer() -> transformers.PreTrainedTokenizerFast:
    """One token per byte, and <s> before the text."""
    letters = {letter: i for i, letter in enumerate(sorted(pre_tokenizers.ByteLevel.alphabet()))}
    backend = Tokenizer(models.BPE(vocab={**letters, "<s>": 256}, merges=[]))
    backend.pre_tokenizer = pre_tokenizers.ByteLevel(add_prefix_space=False)
    backend.decoder = decoders.ByteLevel()
    return transformers.PreTrainedTokenizerFast(tokenizer_object=backend, bos_token="<s>")
