"""What is not routed inside vLLM, each with one line that says what to do instead.

Options that would be silently wrong, or that change what attention gets, are refused at the start. GPUs, torch.compile
and bfloat16 are let through, though never compared (data/results/SERVING.md).
"""

from __future__ import annotations

from typing import Any

from routesparse.engine.errors import InputError, UnsupportedModelError
from routesparse.engine.models.refusals import check_family_name
from routesparse.engine.runtime.vllm.settings import SWITCH

VERSIONS = ("0.26.0", "0.31.0", "0.32.0")  # that were compared; vLLM promises no stability here
CPU_KERNELS = ("vec", "vec16")  # of CPU_ATTN: the layout of their pages is known

_EXTRAS = {
    "alibi_slopes": "ALiBi slopes",
    "sliding_window": "a sliding window",
    "logits_soft_cap": "a soft cap",
    "sinks": "sinks",
    "kv_sharing_target_layer_name": "keys of another layer",
}


def check_version(found: str) -> None:
    """Errors: InputError for a vLLM that was never compared. found: such as "0.32.0+cpu"."""
    if found.split("+")[0] not in VERSIONS:
        raise InputError(
            f"vLLM {found} was never compared with routing; install {' or '.join(VERSIONS)}, or unset {SWITCH}"
        )


def check_engine(config: Any) -> None:
    """Refuse vLLM's VllmConfig where routing was never compared, or would be silently wrong.

    Errors: UnsupportedModelError.
    """
    for refused, why in (
        (
            config.kv_transfer_config is not None,
            "a KV connector would hand the keys and values of routed prompts to other engines; start vLLM without one",
        ),
        (
            config.parallel_config.world_size > 1,
            f"{config.parallel_config.world_size} ranks were never compared; start vLLM with one",
        ),
        (
            config.speculative_config is not None,
            "speculative decoding was never compared; start vLLM without it",
        ),
        (config.lora_config is not None, "LoRA adapters were never compared; start vLLM without them"),
        (
            getattr(config.model_config, "enable_prompt_embeds", False),
            "prompts given as embeddings have no token ids to draw rows by; start vLLM without --enable-prompt-embeds",
        ),
        (
            config.cache_config.cache_dtype
            not in ("auto", str(config.model_config.dtype).removeprefix("torch.")),
            f"a KV cache of {config.cache_config.cache_dtype} was never compared; leave out --kv-cache-dtype",
        ),
    ):
        if refused:
            raise UnsupportedModelError(f"routing inside vLLM: {why} (or unset {SWITCH})")
    check_family_name(config.model_config.hf_config.model_type)


def check_cpu_kernel(isa: str) -> None:
    """Errors: UnsupportedModelError where CPU_ATTN keeps its pages as another kernel reads them."""
    if isa not in CPU_KERNELS:
        raise UnsupportedModelError(
            f"vLLM's CPU kernel {isa!r} keeps keys in an order that was never compared; start vLLM with --dtype float32"
        )


def why_stock(arguments: dict[str, Any]) -> str | None:
    """What keeps a layer with vLLM's attention; None where it is causal over all keys, and nothing else.

    arguments: of the constructor of vLLM's AttentionImpl.
    """
    kind = arguments.get("attn_type", "decoder")
    if (name := getattr(kind, "value", kind)) != "decoder":
        return "cross attention" if name == "encoder_decoder" else f"{name} attention"
    return next((what for given, what in _EXTRAS.items() if arguments.get(given) is not None), None)
