"""KV-cache compression after a routed prefill, by NVIDIA's kvpress: ``with route(model), pressed(model, press):``.

A press scores the keys of each layer when its prefill has ended and keeps the best (StreamingLLM, Xiao et al. 2024:
sinks and the last ones; SnapKV, Li et al. 2024: what the last 64 queries read; ObservedAttention, after H2O, Zhang et
al. 2023: what all queries read). Routing shortens the prefill and a press what decoding reads, so they add up; a
certificate speaks of the prefill alone, and nothing here certifies what a press throws away.

kvpress 0.5.5 wants transformers below 5.3. Later ones no longer hand ``cache_position`` to the layers, which every
press reads: a hook restores it. ObservedAttention reads the attention matrix of eager attention, which a routed
prefill never has: a hook computes the sums over queries that it makes of it, in slices of rows, exactly. That is as
much work as the dense prefill's scores, so it is refused for long prompts.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from importlib import metadata
from pathlib import Path
from typing import TYPE_CHECKING, Any

import torch

from routesparse.engine.errors import InputError, PromptError, UnsupportedModelError
from routesparse.engine.runtime.transformers import attention_modules, check_supported, forward_arguments

if TYPE_CHECKING:
    from transformers import PreTrainedModel

VERSION = "0.5.5"  # the one that was compared
PRESSES = ("StreamingLLMPress", "SnapKVPress", "ObservedAttentionPress")
FAMILIES = ("llama", "mistral", "phi3", "qwen2", "qwen3")  # of both kvpress and us
MOST_OBSERVED_TOKENS = 32_768
_ROWS = 256  # of a slice of attention


@contextmanager
def pressed(model: PreTrainedModel, press: Any) -> Iterator[None]:
    """Inside the block each prompt's cache is compressed by the press as soon as its prefill has ended.

    press: one of kvpress's PRESSES. Decoding may go on inside the block or behind it; ``generate`` counts positions
    from the prompt's true length, and whoever calls the model by hand passes ``position_ids``.
    Errors: InputError where kvpress is missing or of another version, UnsupportedModelError for models and presses that
    were not compared; inside the block PromptError for padded, chunked or too long prompts.
    """
    library = _library()
    _check(model, press)
    modules = attention_modules(model)
    observes = type(press).__name__ == "ObservedAttentionPress"
    with ExitStack() as stack:

        def hooked(handle: Any) -> None:
            stack.callback(handle.remove)

        hooked(model.register_forward_pre_hook(_check_prompt(observes), with_kwargs=True))
        for module in modules:
            hooked(module.register_forward_pre_hook(_restore_cache_position, with_kwargs=True))
            if observes:
                # Before the press's own hook, which reads what this one leaves in the attention's output.
                hooked(module.register_forward_hook(_observe(library), with_kwargs=True))
        stack.enter_context(press(model))
        yield


def _library() -> Any:
    """kvpress's helpers. Importing kvpress wraps every attention function that is registered: ours takes that."""
    # Where `make kvpress` puts it, and what it needs: last, so that no other package changes.
    for folder in ("kvpress", "lm-eval"):
        if (path := str(Path(sys.prefix, folder))) not in sys.path:
            sys.path.append(path)
    try:
        found = metadata.version("kvpress")
        if found != VERSION:
            raise InputError(f"kvpress {found} was never compared; install {VERSION} with `make kvpress`")
        import kvpress.utils
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise InputError(f"kvpress can't be imported ({error}); install it with `make kvpress`") from error
    return kvpress.utils


def _check(model: Any, press: Any) -> None:
    check_supported(model)
    name, config = type(press).__name__, model.config
    if name not in PRESSES or not type(press).__module__.startswith("kvpress."):
        raise UnsupportedModelError(
            f"press {name!r} was never compared after a routed prefill; pass one of {', '.join(PRESSES)}"
        )
    if config.model_type not in FAMILIES:
        raise UnsupportedModelError(
            f"kvpress does not know {config.model_type!r}; models of both are {', '.join(FAMILIES)}"
        )
    if (getattr(model, "_tp_size", None) or 1) > 1:
        raise UnsupportedModelError(
            "a press after a tensor-parallel prefill is not supported: each rank would keep other tokens; "
            "load the model on one device"
        )
    kinds = getattr(config, "layer_types", None) or ()
    windows = "sliding_attention" in kinds or (not kinds and getattr(config, "sliding_window", None))
    if windows:
        raise UnsupportedModelError(
            f"this {config.model_type} has sliding windows, whose cache is cut already; a press needs all keys"
        )
    rotary = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
    if rotary < 1.0 and name != "StreamingLLMPress":
        raise UnsupportedModelError(
            f"{name} turns whole heads, this {config.model_type} turns {rotary:g} of each; pass StreamingLLMPress"
        )


def _check_prompt(observes: bool) -> Any:
    """A hook that refuses prompts for which a press would be silently wrong."""

    def before(model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        named = forward_arguments(arguments, named)
        given = (named.get("input_ids"), named.get("inputs_embeds"))
        tokens = next((tensor for tensor in given if tensor is not None), None)
        if tokens is None or tokens.shape[1] == 1:
            return
        cache = named.get("past_key_values")
        if cache is not None and cache.get_seq_length():
            raise PromptError(
                f"{tokens.shape[1]} tokens behind {cache.get_seq_length()} cached ones: a press compresses a prompt "
                "that comes in one piece; leave the pressed() block to go on with several tokens at a time"
            )
        mask = named.get("attention_mask")
        if mask is not None and not bool(mask.bool().all()):
            raise PromptError("a press takes padding for text; pass prompts of one length, or one at a time")
        if observes and tokens.shape[1] > MOST_OBSERVED_TOKENS:
            raise PromptError(
                f"ObservedAttentionPress reads what every query reads: {tokens.shape[1]:,} tokens cost as much as a "
                f"dense prefill; pass at most {MOST_OBSERVED_TOKENS:,}, or SnapKVPress"
            )

    return before


def _restore_cache_position(
    module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    hidden, cache = named["hidden_states"], named["past_key_values"]
    if cache is None:
        raise PromptError("a press needs a cache to compress; leave use_cache=False out")
    cached = cache.get_seq_length(module.layer_idx)
    position = torch.arange(cached, cached + hidden.shape[1], device=hidden.device)
    return arguments, {**named, "cache_position": position}


def _observe(library: Any) -> Any:
    """A hook that puts the attention which each key receives in the place of the attention matrix."""

    def after(module: Any, arguments: tuple[Any, ...], named: dict[str, Any], output: Any) -> Any:
        hidden, cache = named["hidden_states"], named["past_key_values"]
        if hidden.shape[1] == 1:
            return None
        keys = cache.layers[module.layer_idx].keys
        queries = library.get_prerope_query_states(module, hidden)
        return (output[0], received(queries, keys, named["position_embeddings"], module.scaling), *output[2:])

    return after


@torch.no_grad()
def received(
    queries: torch.Tensor, keys: torch.Tensor, turns: tuple[torch.Tensor, torch.Tensor], scale: float
) -> torch.Tensor:
    """[B, H, 1, n]: the sum over all queries of causal attention, as one row in the place of n.

    queries [B, H, n, D] before RoPE, keys [B, Hkv, n, D] after it, turns (cos, sin) [B, n, D]. float32 inside; each
    weight is rounded to the queries' dtype, as eager attention does before they are summed.
    """
    cos, sin = (part.unsqueeze(1) for part in turns)
    half = queries.shape[-1] // 2
    swapped = torch.cat((-queries[..., half:], queries[..., :half]), dim=-1)
    turned = queries * cos + swapped * sin
    batch, heads, tokens, _ = turned.shape
    repeated = keys.repeat_interleave(heads // keys.shape[1], dim=1)
    total = torch.zeros(batch, heads, 1, tokens, device=keys.device)
    places = torch.arange(tokens, device=keys.device)
    for start in range(0, tokens, _ROWS):
        end = min(start + _ROWS, tokens)
        scores = (turned[:, :, start:end] @ repeated[:, :, :end].transpose(2, 3)) * scale
        future = places[:end] > places[start:end, None]
        weights = scores.masked_fill_(future, float("-inf")).softmax(-1, dtype=torch.float32)
        total[..., :end] += weights.to(queries.dtype).float().sum(2, keepdim=True)
    return total.to(queries.dtype)
