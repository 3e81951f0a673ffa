"""A tiny Llama in a GGUF file, whole or hostile, written by the format's own library."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
from gguf import GGMLQuantizationType, GGUFWriter, quants

LAYERS, HEADS, KV_HEADS, HIDDEN, INNER = 2, 4, 2, 64, 96
_BYTES = [chr(256 + n) for n in range(34)] + [
    chr(n) for n in range(33, 127)
]  # a byte-level alphabet, ASCII of it
_SPACE = "Ġ"
VOCABULARY = ["<|endoftext|>", "<s>", "</s>", *_BYTES, "he", "the", f"{_SPACE}the"]
MERGES = ["h e", "t he", f"{_SPACE} the"]


def weights(seed: int = 0) -> dict[str, np.ndarray]:
    """name -> float32 [out, in], exact in bfloat16."""
    generator = np.random.default_rng(seed)

    def normal(*shape: int) -> np.ndarray:
        drawn = generator.standard_normal(shape).astype(np.float32) * 0.1
        return (drawn.view(np.uint32) & 0xFFFF0000).view(np.float32)

    head = HIDDEN // HEADS
    found = {"token_embd.weight": normal(len(VOCABULARY), HIDDEN), "output_norm.weight": normal(HIDDEN)}
    for layer in range(LAYERS):
        found |= {
            f"blk.{layer}.{name}.weight": normal(*shape)
            for name, shape in {
                "attn_norm": (HIDDEN,),
                "ffn_norm": (HIDDEN,),
                "attn_q": (HEADS * head, HIDDEN),
                "attn_k": (KV_HEADS * head, HIDDEN),
                "attn_v": (KV_HEADS * head, HIDDEN),
                "attn_output": (HIDDEN, HEADS * head),
                "ffn_gate": (INNER, HIDDEN),
                "ffn_up": (INNER, HIDDEN),
                "ffn_down": (HIDDEN, INNER),
            }.items()
        }
    return found


def write(
    file: Path,
    *,
    architecture: str = "llama",
    layers: int = LAYERS,
    tensors: dict[str, np.ndarray] | None = None,
    kind: GGMLQuantizationType = GGMLQuantizationType.F32,
    tokenizer: bool = True,
    more: dict[str, Any] | None = None,
) -> Path:
    """The file. kind: how matrices are stored; more: further metadata, name -> value."""
    writer = GGUFWriter(file, architecture)
    writer.add_license("apache-2.0")
    writer.add_block_count(layers)
    writer.add_context_length(512)
    writer.add_embedding_length(HIDDEN)
    writer.add_feed_forward_length(INNER)
    writer.add_head_count(HEADS)
    writer.add_head_count_kv(KV_HEADS)
    writer.add_rope_dimension_count(HIDDEN // HEADS)
    writer.add_rope_freq_base(10_000.0)
    writer.add_layer_norm_rms_eps(1e-5)
    writer.add_vocab_size(len(VOCABULARY))
    for name, value in (more or {}).items():
        (writer.add_float32 if isinstance(value, float) else writer.add_uint32)(name, value)
    if tokenizer:
        writer.add_tokenizer_model("gpt2")
        writer.add_tokenizer_pre("smollm")
        writer.add_token_list(VOCABULARY)
        writer.add_token_types([3, 3, 3] + [1] * (len(VOCABULARY) - 3))
        writer.add_token_merges(MERGES)
        writer.add_unk_token_id(0)
        writer.add_bos_token_id(1)
        writer.add_eos_token_id(2)
        writer.add_add_bos_token(False)
    for name, values in (weights() if tensors is None else tensors).items():
        packed = kind if values.ndim == 2 else GGMLQuantizationType.F32
        writer.add_tensor(name, quants.quantize(values, packed), raw_dtype=packed)
    writer.write_header_to_file()
    writer.write_kv_data_to_file()
    writer.write_tensors_to_file()
    writer.close()
    return file
