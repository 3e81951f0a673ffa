"""XAttention (arXiv 2503.16428): a block is worth the sums of its antidiagonals.

Queries and keys are cut into groups of S. Query group g and key group h meet on their antidiagonal,

    logit(g, h) = sum_i q[S g + S - 1 - i] . k[S h + i] / (S sqrt(d)),   softmax over h <= g,

and the weights are summed over blocks of B queries and B keys. A query block reads the fewest key blocks whose sum
reaches tau of its own, block 0 and the diagonal before all others. S is 8 or 16, tau .9.

Departures: one threshold for all heads (the authors also search one a head); B is the view's block_q, 128, and a block
of keys becomes two KV blocks of 64. As in the authors' code a last group that is not full counts with zeros for what it
lacks, logits are rounded to the inputs' number format, and sums are compared in float64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import query_block_chunks, square_distance, to_kv_blocks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums, fewest_to_share


@dataclass(frozen=True)
class XAttention:
    """See the module."""

    threshold: float = 0.9  # tau, share of a query block's weight
    stride: int = 8  # S, divides block_q

    def __call__(self, view: View) -> Selection:
        distance = square_distance(view)
        forced = (distance == distance[:, :1]) | (distance == 0)
        kept = fewest_to_share(self.scores(view).double(), self.threshold, forced, distance >= 0)
        return Selection(to_kv_blocks(view, kept))

    def scores(self, view: View) -> torch.Tensor:
        """Weights summed over blocks of block_q queries and block_q keys: float32 [1, H, M, M]."""
        stride, groups, blocks = self.stride, view.block_q // self.stride, view.segment.query_blocks
        # [1, H, n / S, S D]: flipping a group's queries turns its antidiagonal into one product.
        query, key = (
            F.pad(x, (0, 0, 0, -view.tokens % view.block_q)).unflatten(2, (-1, stride))
            for x in (view.inputs.q, view.keys)
        )
        query, key = query.flip(3).flatten(3), key.flatten(3)
        out = torch.zeros(1, view.heads, blocks, blocks, device=view.device)
        for chunk in query_block_chunks(view, groups * groups * blocks):
            first, end = chunk.start * groups, chunk.stop * groups
            row = torch.arange(first, end, device=view.device).view(-1, 1)
            logits = (query[:, :, first:end] @ key[:, :, :end].transpose(-1, -2)).float()
            logits *= view.inputs.scale / stride
            logits.masked_fill_(torch.arange(end, device=view.device) > row, -torch.inf)
            weight = logits.softmax(-1).masked_fill_(row * stride >= view.tokens, 0.0)
            sums = block_sums(weight, groups).unflatten(2, (-1, groups)).sum(3)
            out[:, :, chunk.start : chunk.stop, : chunk.stop] = sums
        return out
