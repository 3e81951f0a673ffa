"""RouteSparse as a transformers attention implementation: ``with routed_by(model, router):`` (route.py has ``route``).

The name "routesparse" is registered twice, as an attention function and as a mask function: without the second,
transformers hands over no mask at all and left padding is silently ignored. The mask function never builds an [n, n]
mask: it returns the 2-D padding mask of the layer's keys, or None when nothing is padded.

Only families whose attention is fully described by what the function receives are routed; the others, and
every cache or mask that would give silently wrong results, are refused (refusals.py).
"""

from __future__ import annotations

import threading
import warnings
import weakref
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

import torch
from torch import Tensor
from transformers import AttentionInterface, AttentionMaskInterface, PreTrainedModel
from transformers.modeling_utils import ALL_ATTENTION_FUNCTIONS

from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.errors import PromptError, UnsupportedModelError
from routesparse.engine.models.refusals import check_call, check_family, check_mask, check_mask_request
from routesparse.engine.runtime.attention_router import AttentionRouter

NAME = "routesparse"
# The first arguments of every supported family's forward, in transformers' order.
FORWARD_ARGUMENTS = ("input_ids", "attention_mask", "position_ids", "past_key_values", "inputs_embeds")
_NOT_COMPILED = "routing depends on values; the model is compiled around it, without fullgraph=True"
_NOT_LEFT = "padding right of or inside a prompt is not supported; set tokenizer.padding_side = 'left'"
# Where route() leaves the router on every attention module of one model while its block runs.
ATTRIBUTE = "_routesparse"
# Open blocks by a model's first attention module, the oldest first.
_blocks: weakref.WeakKeyDictionary[Any, list[_Block]] = weakref.WeakKeyDictionary()
_blocks_lock = threading.Lock()


@contextmanager
def routed_by(model: PreTrainedModel, router: AttentionRouter) -> Iterator[None]:
    """Every attention call of the model goes to the router inside the block; afterwards all is as before.

    Blocks of one thread may be nested and left in any order: the youngest open one has the model. Another thread's are
    refused, and so is a forward pass while another thread's runs.
    Errors: UnsupportedModelError.
    """
    check_supported(model)
    modules = attention_modules(model)
    block = _enter(model, modules, router)
    try:
        router.serve(len(modules))
        with _told_of_forwards(model, block):
            yield
    finally:
        _leave(model, modules, block)


@dataclass(eq=False)
class _Block:
    """A block of routed_by that is open."""

    router: AttentionRouter
    thread: int
    implementation_before: Any
    forward_in: int | None = None  # the thread whose forward pass runs


def _enter(model: PreTrainedModel, modules: list[Any], router: AttentionRouter) -> _Block:
    block = _Block(router, threading.get_ident(), model.config._attn_implementation)
    with _blocks_lock:
        blocks = _blocks.setdefault(modules[0], [])
        if blocks and blocks[-1].thread != block.thread:
            raise UnsupportedModelError(
                "another thread has this model in a route() block, and one trace can't hold both threads' prompts; "
                "leave that block first, or give each thread a copy of the model"
            )
        model.set_attn_implementation(NAME)
        if model.config._attn_implementation != NAME:
            model.set_attn_implementation(block.implementation_before)
            raise UnsupportedModelError(
                f"{type(model).__name__} does not let its attention be replaced; use transformers' own class"
            )
        blocks.append(block)
        for module in modules:
            module.__dict__[ATTRIBUTE] = router
    return block


def _leave(model: PreTrainedModel, modules: list[Any], block: _Block) -> None:
    with _blocks_lock:
        blocks = _blocks[modules[0]]
        place = blocks.index(block)
        blocks.remove(block)
        if place < len(blocks):
            # Left before a younger one, which restores what this one found.
            blocks[place].implementation_before = block.implementation_before
        else:
            model.set_attn_implementation(block.implementation_before)
        for module in modules:
            if blocks:
                module.__dict__[ATTRIBUTE] = blocks[-1].router
            else:
                module.__dict__.pop(ATTRIBUTE, None)


@contextmanager
def _told_of_forwards(model: PreTrainedModel, block: _Block) -> Iterator[None]:
    """A routing session does not wait for a GPU in its layers; it does after the forward."""

    @torch.compiler.disable(reason=_NOT_COMPILED)
    def before(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        for tokens in (*arguments[:1], named.get("input_ids"), named.get("inputs_embeds")):
            if isinstance(tokens, Tensor) and not tokens.numel():
                raise PromptError(
                    f"a batch of shape {list(tokens.shape)} holds no token; pass at least one prompt of one token"
                )
        if block.forward_in not in (None, threading.get_ident()):
            raise PromptError(
                "another thread is inside this model's forward pass, and one trace can't tell their prompts apart; "
                "call the model in turn, or give each thread a copy of it"
            )
        block.forward_in = threading.get_ident()
        block.router.start()

    def before_masks(module: Any, arguments: tuple[Any, ...], named: dict[str, Any]) -> None:
        # A mask by kind of layer reaches the layers as it is: the mask function, which checks, is not asked.
        check_mask(forward_arguments(arguments, named).get("attention_mask"))

    @torch.compiler.disable(reason=_NOT_COMPILED)
    def after(*_: Any) -> None:
        block.router.finish()

    @torch.compiler.disable(reason=_NOT_COMPILED)
    def always(*_: Any) -> None:
        if block.forward_in == threading.get_ident():
            block.forward_in = None

    hooks = [
        model.register_forward_pre_hook(before, with_kwargs=True),
        model.base_model.register_forward_pre_hook(before_masks, with_kwargs=True),
        model.register_forward_hook(after),
        model.register_forward_hook(always, always_call=True),
    ]
    try:
        yield
    finally:
        for hook in hooks:
            hook.remove()


def tell_of_replaced(model: PreTrainedModel) -> None:
    """Warn the caller of a block where somebody's own attention function, under whatever name, will not run in it."""
    name = model.config._attn_implementation
    function = ALL_ATTENTION_FUNCTIONS.get(name)
    package = (getattr(function, "__module__", None) or "").split(".")[0]
    # kvpress wraps every function that transformers has, Ulysses the block's own.
    if name != NAME and function is not None and package not in ("transformers", "kvpress", "routesparse"):
        warnings.warn(
            f"your attention function {name!r} does not run inside this block, which replaces it; call "
            "set_attn_implementation('sdpa') before the block if that is meant, or certify() to judge yours",
            stacklevel=4,  # behind this function, the block's and contextlib's
        )


def forward_arguments(arguments: tuple[Any, ...], named: dict[str, Any]) -> dict[str, Any]:
    """A model's forward arguments by name, those that came by position too; for a hook before the forward pass."""
    return {**dict(zip(FORWARD_ARGUMENTS, arguments, strict=False)), **named}


def check_supported(model: object) -> None:
    """Errors: UnsupportedModelError when routing this model would fail or be silently wrong."""
    if not isinstance(model, PreTrainedModel):
        raise UnsupportedModelError(
            f"route() takes a transformers PreTrainedModel; pass the one inside this {type(model).__name__}"
        )
    check_family(model.config)


def attention_modules(model: PreTrainedModel) -> list[Any]:
    """The model's self-attention modules by layer. Errors: UnsupportedModelError when there is none."""
    modules: list[Any] = [
        module
        for module in model.modules()
        if hasattr(module, "layer_idx") and hasattr(module, "num_key_value_groups")
    ]
    if not modules:
        raise UnsupportedModelError(f"{type(model).__name__} has no attention layers; pass a decoder model")
    return sorted(modules, key=lambda module: module.layer_idx)


def inputs_of(
    query: Tensor,
    key: Tensor,
    value: Tensor,
    scaling: float | None,
    softcap: float | None,
    sinks: Tensor | None,
    key_start: Tensor | None = None,
) -> AttentionInputs:
    """What transformers hands to an attention function, as ours."""
    scale = query.shape[3] ** -0.5 if scaling is None else scaling
    return AttentionInputs(query, key, value, scale, key_start, softcap=softcap or None, sinks=sinks)


def reaching(window: int | None, key: Tensor) -> int | None:
    """A window that covers every key masks nothing: such a layer is an ordinary one."""
    return None if window is None or window >= key.shape[2] else window


@torch.compiler.disable(reason=_NOT_COMPILED)
def attention(
    module: Any,
    query: Tensor,
    key: Tensor,
    value: Tensor,
    attention_mask: Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    s_aux: Tensor | None = None,
    **kwargs: Any,
) -> tuple[Tensor, None]:
    """The function that transformers calls for every attention layer.

    query [B, Hq, n_q, D] (not contiguous, RoPE applied), key and value [B, Hkv, n_k, D] (not repeated, cache
    included), attention_mask None or bool [B, n_k] from padding_mask. Returns [B, n_q, Hq, D] and None.
    """
    router: AttentionRouter | None = module.__dict__.get(ATTRIBUTE)
    plain = attention_mask is None and sliding_window is None and s_aux is None and not (softcap or dropout)
    if router is not None and plain and not torch.is_grad_enabled() and getattr(module, "is_causal", True):
        # Only the first layer asks whether a prompt is worth routing; its call was checked for all of them.
        out = router.untouched(query, key, value, layer=module.layer_idx, scale=scaling)
        if out is not None:
            return out.transpose(1, 2), None
    training = module.training and torch.is_grad_enabled()
    check_call(module, query, key, attention_mask, dropout, kwargs, training=training)
    if router is None:
        raise UnsupportedModelError(
            f"this model is set to {NAME!r} and has no open route() block; open one, and where it shares its config "
            "object with a model that has, build it from copy.deepcopy(config)"
        )
    # The routed path has no backward pass: keep autograd out of it, and refuse a later backward().
    with torch.no_grad():
        inputs = inputs_of(query, key, value, scaling, softcap, s_aux, _first_keys(attention_mask))
        out = router.attend(inputs, layer=module.layer_idx, window=reaching(sliding_window, key))
    needed = [x for x in (query, key, value, s_aux) if x is not None and x.requires_grad]
    if torch.is_grad_enabled() and needed:
        out = _NoBackward.apply(out, *needed)
    return out.transpose(1, 2), None


@torch.compiler.disable(reason=_NOT_COMPILED)
def padding_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | Tensor = 0,
    kv_offset: int = 0,
    attention_mask: Tensor | None = None,
    **kwargs: Any,
) -> Tensor | None:
    """The mask function: bool [B, kv_length], True on real keys, or None when every key is real.

    Called once per forward pass and kind of layer, before the first layer. One host synchronisation, and only
    when the caller passes an attention mask.
    Errors: PromptError for right padding, holes and packed sequences; UnsupportedModelError for masks that
    are not causal and for static caches.
    """
    check_mask_request(batch_size, q_length, kv_length, q_offset, kv_offset, kwargs)
    if attention_mask is None:
        return None
    if attention_mask.shape[-1] < kv_offset + kv_length:
        raise PromptError(
            f"the attention mask covers {attention_mask.shape[-1]} of {kv_offset + kv_length} tokens; "
            "pass a mask over the whole sequence, cached tokens included"
        )
    keys = attention_mask[:, : kv_offset + kv_length].to(torch.bool)
    ascending = keys[:, 1:] >= keys[:, :-1]  # False first and True from some place on
    # One transfer for both answers.
    all_real, left_padded = torch.stack((keys.all(), ascending.all())).tolist()
    if all_real:
        return None
    if not left_padded:
        raise PromptError(_NOT_LEFT)
    return keys[:, kv_offset:]


AttentionInterface.register(NAME, attention)
AttentionMaskInterface.register(NAME, padding_mask)


class _NoBackward(torch.autograd.Function):
    """The output of routed attention of inputs that need gradients: usable forwards, an error backwards."""

    @staticmethod
    def forward(ctx: Any, out: Tensor, *inputs: Tensor) -> Tensor:
        return out.view_as(out)

    @staticmethod
    def backward(ctx: Any, *gradients: Tensor) -> Any:
        raise UnsupportedModelError("routed attention has no backward pass; leave the route() block to train")


def _first_keys(attention_mask: Tensor | None) -> Tensor | None:
    """int32 [B]: the first real key of each row of a left-padded batch; no host synchronisation."""
    if attention_mask is None:
        return None
    return (attention_mask.shape[-1] - attention_mask.sum(-1)).to(torch.int32)
