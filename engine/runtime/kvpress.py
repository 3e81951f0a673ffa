"""KV-cache compression after a routed prefill, by NVIDIA's kvpress: ``with route(model), pressed(model, press):``.

A press scores the keys of each layer when its prefill has ended and keeps the best (StreamingLLM, Xiao et al. 2024:
sinks and the last ones; SnapKV, Li et al. 2024: what the last 64 queries read). Routing shortens the prefill and a
press what decoding reads, so they add up; a certificate speaks of the prefill alone, and nothing here certifies what a
press throws away.

kvpress 0.5.5 wants transformers below 5.3. Later ones no longer hand ``cache_position`` to the layers, which every
press reads: a hook restores it.
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
PRESSES = ("StreamingLLMPress", "SnapKVPress")
FAMILIES = ("llama", "mistral", "phi3", "qwen2", "qwen3")  # of both kvpress and us


@contextmanager
def pressed(model: PreTrainedModel, press: Any) -> Iterator[None]:
    """Inside the block each prompt's cache is compressed by the press as soon as its prefill has ended.

    press: one of kvpress's PRESSES. Decoding may go on inside the block or behind it; ``generate`` counts positions
    from the prompt's true length, and whoever calls the model by hand passes ``position_ids``.
    Errors: InputError where kvpress is missing or of another version, UnsupportedModelError for models and presses that
    were not compared; inside the block PromptError for padded or chunked prompts.
    """
    import_kvpress()
    _check(model, press)
    with ExitStack() as stack:
        hooks = [model.register_forward_pre_hook(_check_prompt, with_kwargs=True)]
        for module in attention_modules(model):
            hooks.append(module.register_forward_pre_hook(_restore_cache_position, with_kwargs=True))
        for hook in hooks:
            stack.callback(hook.remove)
        stack.enter_context(press(model))
        yield


def import_kvpress() -> Any:
    """The library, which wraps every attention function that is registered; ours takes that. Errors: InputError."""
    # Where `make kvpress` puts it, and what it needs: last, so that no other package changes.
    for folder in ("kvpress", "lm-eval"):
        if (path := str(Path(sys.prefix, folder))) not in sys.path:
            sys.path.append(path)
    try:
        found = metadata.version("kvpress")
        if found != VERSION:
            raise InputError(f"kvpress {found} was never compared; install {VERSION} with `make kvpress`")
        import kvpress
    except (ImportError, metadata.PackageNotFoundError) as error:
        raise InputError(f"kvpress can't be imported ({error}); install it with `make kvpress`") from error
    return kvpress


def _check(model: Any, press: Any) -> None:
    check_supported(model)
    name, config = type(press).__name__, model.config
    kinds = getattr(config, "layer_types", None) or ()
    windows = "sliding_attention" in kinds or (not kinds and getattr(config, "sliding_window", None))
    rotary = (getattr(config, "rope_parameters", None) or {}).get("partial_rotary_factor") or 1.0
    for refused, why in (
        (
            name not in PRESSES or not type(press).__module__.startswith("kvpress."),
            f"press {name!r} was never compared after a routed prefill; pass one of {', '.join(PRESSES)}",
        ),
        (
            config.model_type not in FAMILIES,
            f"kvpress does not know {config.model_type!r}; models of both are {', '.join(FAMILIES)}",
        ),
        (
            (getattr(model, "_tp_size", None) or 1) > 1,
            "a press after a tensor-parallel prefill is not supported: each rank would keep other tokens; load the "
            "model on one device",
        ),
        (
            windows,
            f"this {config.model_type} has sliding windows, whose cache is cut already; a press needs all keys",
        ),
        (
            rotary < 1.0 and name != "StreamingLLMPress",
            f"{name} turns whole heads, this {config.model_type} turns {rotary:g} of each; pass StreamingLLMPress",
        ),
    ):
        if refused:
            raise UnsupportedModelError(why)


def _check_prompt(model: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
    """A hook that refuses prompts for which a press would be silently wrong."""
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


def _restore_cache_position(
    module: Any, arguments: tuple[Any, ...], named: dict[str, Any]
) -> tuple[tuple[Any, ...], dict[str, Any]]:
    hidden, cache = named["hidden_states"], named["past_key_values"]
    if cache is None:
        raise PromptError("a press needs a cache to compress; leave use_cache=False out")
    cached = cache.get_seq_length(module.layer_idx)
    position = torch.arange(cached, cached + hidden.shape[1], device=hidden.device)
    return arguments, {**named, "cache_position": position}
