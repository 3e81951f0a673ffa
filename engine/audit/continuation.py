"""How the prompt goes on: a few tokens decoded greedily from the routed prefill's cache, and from the dense one's.

Both sides decode with dense attention, so what differs comes from the keys and values that the prefill left behind. The
first token is the one of answer.py. Two near-equal odds can part two texts that mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from routesparse.engine.rows import ContinuationRow

CONTINUED = 24  # tokens a side


@torch.no_grad()
def continued(model: Any, logits: torch.Tensor, cache: Any, steps: int) -> tuple[int, ...]:
    """At most ``steps`` tokens, each the most probable one, up to and with the first that ends a text.

    logits float32 [1, vocabulary] and the key-value cache of one prefilled prompt; the cache grows.
    """
    ends = model.generation_config.eos_token_id
    ends = {end for end in (ends if isinstance(ends, list | tuple) else [ends]) if isinstance(end, int)}
    found: list[int] = []
    while len(found) < steps:
        best = logits.argmax(-1, keepdim=True)
        found.append(int(best))
        if found[-1] in ends or len(found) == steps:
            break
        logits = model(best, past_key_values=cache, use_cache=True).logits[:, -1]
    return tuple(found)


def continuation_row(
    routed: tuple[int, ...],
    dense: tuple[int, ...],
    run_id: str,
    text_of: Callable[[list[int]], str] | None,
) -> ContinuationRow:
    """Both sides of one prompt. text_of: the text of token ids; None where the text is not to be kept."""
    pairs = zip(routed, dense, strict=False)
    same = next((place for place, (a, b) in enumerate(pairs) if a != b), min(len(routed), len(dense)))
    return ContinuationRow(
        run_id=run_id,
        batch_index=0,
        tokens=max(len(routed), len(dense)),
        same_tokens=same,
        same_text=None if text_of is None else text_of(list(dense[:same])),
        dense_text=None if text_of is None else text_of(list(dense)),
        routed_text=None if text_of is None else text_of(list(routed)),
    )
