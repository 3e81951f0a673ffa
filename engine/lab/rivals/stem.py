"""Stem (arXiv 2603.06274): early rows keep more blocks, and a block's score counts the size of its values.

*Output-aware metric.* What leaving out key j costs row i is about exp(q_i . k_j / sqrt(d)) |v_j|; as a logarithm and
over blocks of B tokens:

    M(i, j) = mean antidiagonal logit of blocks i and j + beta max(0, max over block j of log |v|)

The logit is XAttention's: groups of S queries and S keys meet on their antidiagonal, divided by S sqrt(d). *Token
position decay.* Query block i of N reads its k(i) best blocks,

    k(i) = ceil(k_start - k_start (1 - mu) i / N),  at least ``least_blocks``,

because what a first row loses reaches every later row and layer. The first and the last ``edge_blocks`` are always
read. Published: k_start is .2 N up to 16K tokens and .1 N beyond, beta .2, mu .7, least 54 blocks of 128.

Inferred from a summary of the paper and from the authors' code (AngelSlim); the paper's text was not at hand. That code
departs from the formula: it standardises log |v| over the prompt, averages it over groups, keeps 30 blocks more, and
leaves the first two layers dense. Departures here: blocks of the view's block_q, 128 as theirs, become two KV blocks of
64 keys each; the edge blocks come on top of k(i), as in the code. As there, a last group that is not full counts with
zeros for what it lacks.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import ranks, square_distance, to_kv_blocks
from routesparse.engine.lab.rivals.rule import Selection, View


@dataclass(frozen=True)
class Stem:
    """See the module."""

    start_share: float = 0.1  # k_start / N
    decay: float = 0.7  # mu, the last row's budget over the first one's
    value_weight: float = 0.2  # beta
    stride: int = 8  # S, divides block_q
    least_blocks: int = 54
    edge_blocks: int = 4

    def __call__(self, view: View) -> Selection:
        distance = square_distance(view)
        metric = self.metric(view).masked_fill_(distance < 0, -torch.inf)
        budget = torch.tensor(self.budgets(view.segment.query_blocks), device=view.device).view(-1, 1)
        kept = (ranks(metric) < budget) | (distance < self.edge_blocks)
        kept |= distance > distance[:, :1] - self.edge_blocks
        return Selection(to_kv_blocks(view, kept & (distance >= 0)))

    def budgets(self, blocks: int) -> list[int]:
        """k(i) of every query block."""
        start = self.start_share * blocks
        wanted = (math.ceil(start - start * (1 - self.decay) * i / blocks) for i in range(blocks))
        return [max(self.least_blocks, k) for k in wanted]

    def metric(self, view: View) -> torch.Tensor:
        """M(i, j): float32 [1, H, M, M]."""
        # A mean over a block's groups of products is the product of the means over its groups, place by place.
        q, k = (self._places(x, view.block_q) for x in (view.inputs.q, view.inputs.k))
        k = k.repeat_interleave(view.inputs.groups, 1)
        logits = q.flip(3).flatten(3) @ k.flatten(3).transpose(-1, -2) * (view.inputs.scale / self.stride)
        size = F.pad(view.inputs.v.float().norm(dim=-1), (0, -view.tokens % view.block_q))
        bonus = size.unflatten(-1, (-1, view.block_q)).amax(-1).log().clamp_min(0.0)
        return logits + self.value_weight * bonus.repeat_interleave(view.inputs.groups, 1).unsqueeze(2)

    def _places(self, x: torch.Tensor, block: int) -> torch.Tensor:
        """Means over a block's groups for each place in a group: [1, H, n, D] -> float32 [1, H, M, S, D]."""
        padded = F.pad(x.float(), (0, 0, 0, -x.shape[2] % block))
        return padded.unflatten(2, (-1, block // self.stride, self.stride)).mean(3)
