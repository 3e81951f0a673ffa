"""What a rule reads on one prompt, as a block mask: bool [L, H, M, N] over layers, heads, query blocks and KV blocks.

A foreign mask for whoever scores, draws or certifies one (``engine/lab/studies/mask.py`` writes them from the
shell). Blocks past the diagonal are false, the blocks that a query block meets there are true, and a layer that the
rule leaves dense reads every causal block. The rule stands as published, without what every plan of ours reads; rules
of scorers/ count the sink, the diagonal and the block before it among their blocks. A rule that also reads single
columns is refused: a block mask cannot say them.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import torch

from routesparse.engine.errors import ConfigError, UnsupportedModelError
from routesparse.engine.lab.rivals.rule import Rule, RuleRouter, Selection, View
from routesparse.engine.runtime.transformers import routed_by


class MaskRecorder:
    """A rule that another one decides and whose masks are kept by layer, on the CPU: bool [H, M, N]."""

    def __init__(self, rule: Rule) -> None:
        self._rule = rule
        self.masks: dict[int, torch.Tensor] = {}

    def __call__(self, view: View) -> Selection | None:
        found = self._rule(view)
        if found is not None and found.columns is not None:
            raise ConfigError(
                f"{type(self._rule).__name__} reads single columns, which a block mask cannot say; "
                "use a rule that reads blocks alone"
            )
        causal = view.forced_and_causal[1]
        first_row = torch.arange(view.segment.query_blocks, device=view.device).view(-1, 1) * view.block_q
        diagonal = torch.arange(view.segment.key_blocks, device=view.device) >= first_row // view.block_k
        kept = causal if found is None else (found.blocks | diagonal) & causal
        self.masks[view.layer] = kept.expand(1, view.heads, -1, -1)[0].cpu()
        return found


def block_masks(model: Any, ids: list[int], rule: Rule, *, salt: str = "") -> torch.Tensor:
    """bool [L, H, M, N] of one prefill served by the rule, so that later layers see what it did to earlier ones.

    Errors: ConfigError for a rule that reads columns; UnsupportedModelError.
    """
    recorder = MaskRecorder(rule)
    with torch.no_grad(), routed_by(model, RuleRouter(recorder, extras=False, salt=salt)):
        model.model(torch.tensor([ids], device=model.device), use_cache=False)
    layers = range(model.config.get_text_config().num_hidden_layers)
    unserved = sorted(set(layers) - set(recorder.masks))
    if unserved:
        raise UnsupportedModelError(
            f"layer {unserved[0]} was not served by the rule: it has a sliding window, or the prompt is too short; "
            "use a model without sliding windows"
        )
    return torch.stack([recorder.masks[layer] for layer in layers])


def save_mask(
    path: Path, mask: torch.Tensor, *, block_q: int = 128, block_k: int = 64, about: str = ""
) -> None:
    """Write bool [L, H, M, N] as safetensors, the tensor ``mask``; sizes and ``about`` go into its metadata."""
    from safetensors.torch import save_file

    metadata = {"block_q": str(block_q), "block_k": str(block_k), "about": about}
    save_file({"mask": mask.contiguous()}, path, metadata=metadata)
