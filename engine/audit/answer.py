"""The answer itself: the next token by the routed prefill beside the one by dense attention.

Two prefills of one prompt end in logits z (routed) and z_dense: ||z - z_dense|| / ||z_dense||, KL(dense || routed) in
nats, whether both prefer the same token, and each side's most probable tokens with their odds on both sides.

And how the prompt goes on: a few tokens decoded greedily from the routed prefill's cache, and from the dense one's.
Both sides decode with dense attention, so what differs comes from the keys and values that the prefill left behind. Two
near-equal odds can part two texts that mean the same.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import torch

from routesparse.engine.rows import AnswerRow, ContinuationRow

MOST_PROBABLE = 5  # of each side
CONTINUED = 24  # tokens a side


def answer_figures(routed: torch.Tensor, dense: torch.Tensor) -> dict[str, float]:
    """Of next-token logits float32 [B, vocabulary], means over the batch: top1_agreement, logit_error, kl_nats."""
    routed, dense = routed.double(), dense.double()
    error = (routed - dense).norm(dim=-1) / dense.norm(dim=-1).clamp_min(1e-30)
    given, found = dense.log_softmax(-1), routed.log_softmax(-1)
    return {
        "top1_agreement": float((routed.argmax(-1) == dense.argmax(-1)).double().mean()),
        "logit_error": float(error.mean()),
        # Rounding can leave a sum of zeros below zero.
        "kl_nats": max(0.0, float((given.exp() * (given - found)).sum(-1).mean())),
    }


def answer_rows(
    routed: torch.Tensor, dense: torch.Tensor, run_id: str, text_of: Callable[[list[int]], str] | None
) -> tuple[AnswerRow, ...]:
    """The tokens among either side's MOST_PROBABLE, dense's order first. Logits [B, vocabulary].

    text_of: the text of token ids; None where the text is not to be kept.
    """
    odds = {"dense": dense.double().softmax(-1).cpu(), "routed": routed.double().softmax(-1).cpu()}
    rows = []
    for b in range(len(dense)):
        ranks = {}
        for side, probabilities in odds.items():
            # The first of equals leads, as in argmax.
            order = probabilities[b].argsort(descending=True, stable=True)
            ranks[side] = torch.empty_like(order).scatter_(0, order, torch.arange(1, len(order) + 1))
        wanted = ((ranks["dense"] <= MOST_PROBABLE) | (ranks["routed"] <= MOST_PROBABLE)).nonzero()[:, 0]
        for token in sorted(wanted.tolist(), key=lambda token: int(ranks["dense"][token])):
            rows.append(
                AnswerRow(
                    run_id=run_id,
                    batch_index=b,
                    token_id=token,
                    text=None if text_of is None else text_of([token]),
                    dense=float(odds["dense"][b, token]),
                    routed=float(odds["routed"][b, token]),
                    dense_rank=int(ranks["dense"][token]),
                    routed_rank=int(ranks["routed"][token]),
                )
            )
    return tuple(rows)


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
    routed: tuple[int, ...], dense: tuple[int, ...], run_id: str, text_of: Callable[[list[int]], str] | None
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
