"""The answer itself: the next token by the routed prefill beside the one by dense attention.

Two prefills of one prompt end in logits z (routed) and z_dense: ||z - z_dense|| / ||z_dense||, KL(dense || routed) in
nats, whether both prefer the same token, and each side's most probable tokens with their odds on both sides.
"""

from __future__ import annotations

from collections.abc import Callable

import torch

from routesparse.engine.rows import AnswerRow

MOST_PROBABLE = 5  # of each side


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
