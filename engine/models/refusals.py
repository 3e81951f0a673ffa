"""What the transformers integration refuses, each with one line that says what to do instead.

A family is on the list only because it was compared with its own eager attention, negative controls included
(tests/engine/runtime/test_transformers.py). Everything here is shape and flag checking: no work on the device.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from routesparse.engine.errors import PromptError, UnsupportedModelError

if TYPE_CHECKING:
    from torch import Tensor
MODEL_FAMILIES: frozenset[str] = frozenset(
    (
        *("llama", "arcee", "smollm3", "minimax_m2", "seed_oss", "stablelm", "helium", "apertus", "nemotron"),
        *("qwen2", "qwen2_moe", "qwen3", "qwen3_moe"),
        *("mistral", "ministral", "ministral3", "mixtral"),
        *("phi", "phi3", "phimoe"),
        *("glm", "glm4", "glm4_moe"),
        *("gemma", "gemma2", "gemma3_text", "vaultgemma"),
        *("cohere", "cohere2", "ernie4_5", "exaone4", "gpt_oss", "granite", "hunyuan_v1_dense"),
        *("olmo2", "olmo3", "starcoder2"),
    )
)
# Families that their users may expect here, by what stands against them.
_REFUSED = {
    "its chunked attention reaches only the mask, so routing would be silently wrong": (
        "llama4",
        "llama4_text",
    ),
    "its image tokens attend both ways; load the text model, Gemma3ForCausalLM": ("gemma3",),
    "its values have another head size than its keys, as in latent attention, which no row plan's kernel takes": (
        *("axk1", "deepseek_v2", "deepseek_v3", "glm4_moe_lite", "longcat_flash", "mimo_v2_flash"),
        *("minicpm3", "mistral4", "youtu"),
    ),
    "it was trained with sparse attention of its own, which routing would take the place of": (
        *("deepseek_v32", "deepseek_v4", "glm_moe_dsa"),
    ),
    "most of its layers keep a recurrent state in the place of keys, and no prompt of it was ever compared": (
        *("bamba", "falcon_h1", "granitemoehybrid", "jamba", "kimi_linear", "lfm2", "lfm2_moe", "minimax"),
        *("nemotron_h", "olmo_hybrid", "qwen3_5_text", "qwen3_5_moe_text", "qwen3_next", "recurrent_gemma"),
        *("zamba2",),
    ),
    "some of its layers read the keys of others and its kinds of layers have different head sizes": (
        *("gemma3n_text", "gemma4_text"),
    ),
    "it reads images or sound, too; only text models are routed": (
        *("gemma3n", "gemma4", "mistral3", "qwen2_5_vl", "qwen2_vl", "qwen3_5", "qwen3_5_moe", "qwen3_vl"),
    ),
    "its attention does not go through transformers' attention interface as the others' does": (
        *("falcon", "gpt_neox", "modernbert-decoder", "mpt", "persimmon"),
    ),
}
_WHY_REFUSED = {family: why for why, families in _REFUSED.items() for family in families}
_PACKED = "packed sequences are not supported; pass one prompt per batch row, padded on the left"
# Keyword arguments that change attention in ways a row plan cannot express.
_UNSUPPORTED_ARGUMENTS = {
    "cache": "a paged cache is not supported; use generate() with the default DynamicCache",
    "position_bias": "a position bias is not supported; keep the model's own attention",
    "cu_seq_lens_q": _PACKED,
    "cu_seq_lens_k": _PACKED,
}


def check_family(config: Any) -> None:
    """Errors: UnsupportedModelError unless the configuration's family is in MODEL_FAMILIES and causal."""
    check_family_name(config.model_type)
    if not getattr(config, "is_causal", True) or getattr(config, "use_bidirectional_attention", False):
        raise UnsupportedModelError(
            f"this {config.model_type} attends in both directions, which is not routed"
        )


def check_family_name(family: str) -> None:
    """Errors: UnsupportedModelError unless the model_type is in MODEL_FAMILIES."""
    if family not in MODEL_FAMILIES:
        why = _WHY_REFUSED.get(family, "it was never compared with its own attention")
        raise UnsupportedModelError(
            f"model family {family!r} is not supported: {why} (supported: {', '.join(sorted(MODEL_FAMILIES))})"
        )


def check_mask_request(
    batch: int, q_length: int, kv_length: int, q_offset: int | Tensor, kv_offset: int, flags: dict[str, Any]
) -> None:
    """Refuse masks that are not plain causal (windows aside) and caches whose keys are not the seen tokens.

    flags: the further keyword arguments of transformers' mask functions. Without a cache and a mask, transformers takes
    every prompt of a compiled model for a packed one, so the mask itself is asked.
    Errors: PromptError for packed sequences, UnsupportedModelError for the rest.
    """
    if flags.get("use_vmap") or "allow_is_bidirectional_skip" in flags:
        raise UnsupportedModelError(
            "a mask of the model's own (images, both directions) is not supported; only causal text is routed"
        )
    if (
        q_length > 1
        and not flags.get("allow_is_causal_skip", True)
        and not _is_causal(batch, q_length, flags)
    ):
        raise PromptError(_PACKED)
    if not isinstance(q_offset, int) or kv_offset + kv_length != q_offset + q_length:
        raise UnsupportedModelError(
            "a StaticCache is not supported: its keys outlast the prompt; use the default DynamicCache"
        )


def _is_causal(batch: int, tokens: int, flags: dict[str, Any]) -> bool:
    """Whether each token of a whole prompt sees the one before it and not the one behind. Waits for the device."""
    import torch

    shows = flags.get("mask_function")
    if shows is None:
        return False
    rows = torch.arange(batch, device=flags.get("device")).view(-1, 1)
    early = torch.arange(tokens - 1, device=flags.get("device"))
    return bool((shows(rows, 0, early + 1, early) & ~shows(rows, 0, early, early + 1)).all())


def check_mask(mask: Any) -> None:
    """Errors: UnsupportedModelError for an attention mask that is no tensor [batch, tokens], such as one by layer."""
    kind = f"{mask.dim()}-D" if hasattr(mask, "dim") else type(mask).__name__
    if mask is not None and kind != "2-D":
        raise UnsupportedModelError(f"a {kind} attention mask is not supported; pass one [batch, tokens]")


def check_call(
    module: Any,
    query: Tensor,
    key: Tensor,
    attention_mask: Tensor | None,
    dropout: float,
    arguments: dict[str, Any],
    *,
    training: bool,
) -> None:
    """Refuse an attention call that would be silently wrong; query [B, Hq, n_q, D], key [B, Hkv, n_k, D].

    Errors: UnsupportedModelError, PromptError for packed sequences.
    """
    check_family(module.config)
    if not getattr(module, "is_causal", True) or arguments.get("is_causal") is False:
        raise UnsupportedModelError("cross and bidirectional attention are not supported; use causal models")
    if arguments.get("output_attentions"):
        raise UnsupportedModelError("output_attentions=True is not supported: no matrix is built; use eager")
    for name, message in _UNSUPPORTED_ARGUMENTS.items():
        if arguments.get(name) is not None:
            raise PromptError(message) if message is _PACKED else UnsupportedModelError(message)
    if dropout or training:
        raise UnsupportedModelError("training is not supported; call model.eval() before route()")
    check_mask(attention_mask)
    n_q, n_k = query.shape[2], key.shape[2]
    if n_q > n_k or (attention_mask is not None and attention_mask.shape[-1] != n_k):
        raise UnsupportedModelError(f"{n_q} queries over {n_k} keys are no prefill; use DynamicCache")
