"""How much an error of a head's output matters: the Fisher information of the model's own predictions in it.

With g the gradient, in a head's output at one position, of the log-likelihood of a whole text whose every token is
drawn from the model's own prediction, F = E[g g']. An error d at each position, of which those of different heads and
positions add up by chance alone, then costs a prefill

    KL = 1/2 sum over layers and heads of E over positions [d' F d]  ~  1/2 sum of (tr F / D) E |d|^2

nats a token against exact attention, to second order. One backward pass a text; the weights stay as they are.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import Any

import numpy as np
import torch
from transformers import AttentionInterface, AttentionMaskInterface
from transformers.integrations.sdpa_attention import sdpa_attention_forward
from transformers.masking_utils import sdpa_mask

from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.runtime.transformers import attention_modules

NAME = "routesparse_fisher"
CHUNK = 2_048  # positions whose logits exist at a time


def head_fisher(model: Any, texts: Iterable[Sequence[int]], seed: int) -> np.ndarray:
    """tr F / D of every layer and head, float64 [L, H], a mean over the texts' positions.

    model: a causal transformers model. texts: token ids, at least one, each of at least two tokens. Tokens are drawn
    by the seed on the model's device. Errors: UnsupportedModelError for soft caps, sinks, or a layer without attention.
    """
    heads = []
    with _listening(model) as gradients:
        for place, ids in enumerate(texts):
            gradients.clear()
            tokens = torch.tensor([list(ids)], device=model.device)
            generator = torch.Generator(model.device).manual_seed(seed + place)
            with torch.enable_grad():
                hidden = model.base_model(tokens, use_cache=False).last_hidden_state[0]
                _of_drawn(model, hidden, generator).backward()
            found = [gradients[layer].grad for layer in sorted(gradients)]
            if len(found) != len(attention_modules(model)) or any(g is None for g in found):
                raise UnsupportedModelError(
                    f"{type(model).__name__} has layers whose attention has no gradient"
                )
            heads.append(torch.stack([g[0].float().square().mean((0, 2)) for g in found if g is not None]))
    return torch.stack(heads).double().mean(0).cpu().numpy()


def _of_drawn(model: Any, hidden: torch.Tensor, generator: torch.Generator) -> torch.Tensor:
    """The log-likelihood of tokens drawn at every position from hidden states [n, hidden], in chunks of logits.

    The gradient in the hidden states is made chunk by chunk, and what is returned has it: its own value is not the
    likelihood.
    """
    leaf = hidden.detach().requires_grad_()
    for part in leaf.split(CHUNK):
        log_p = model.lm_head(part).float().log_softmax(-1)
        drawn = torch.multinomial(log_p.detach().exp(), 1, generator=generator)
        log_p.gather(-1, drawn).sum().backward()
    assert leaf.grad is not None
    return (hidden * leaf.grad).sum()


@contextmanager
def _listening(model: Any) -> Iterator[dict[int, torch.Tensor]]:
    """A leaf of zeros is added to every attention output [1, n, H, D]; its gradient is g. By layer."""
    leaves: dict[int, torch.Tensor] = {}

    def attention(module: Any, *arguments: Any, **named: Any) -> tuple[torch.Tensor, None]:
        if named.get("softcap") or named.get("s_aux") is not None:
            raise UnsupportedModelError(
                f"{type(model).__name__} has soft caps or sinks, which are not weighed yet"
            )
        out, _ = sdpa_attention_forward(module, *arguments, **named)
        leaves[module.layer_idx] = torch.zeros_like(out, requires_grad=True)
        return out + leaves[module.layer_idx], None

    before, grads = model.config._attn_implementation, [p.requires_grad for p in model.parameters()]
    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, sdpa_mask)  # windows stay windows
    try:
        attention_modules(model)
        model.requires_grad_(False)
        model.set_attn_implementation(NAME)
        yield leaves
    finally:
        model.set_attn_implementation(before)
        for parameter, needed in zip(model.parameters(), grads, strict=True):
            parameter.requires_grad_(needed)
