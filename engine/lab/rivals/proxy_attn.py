"""ProxyAttn (arXiv 2509.24745): a mean head scores tokens for all heads of its group; each head has its own budget.

Queries and keys are averaged over the heads of a group. The proxy's exact attention, token by token, ranks the key
blocks of every query block by their largest weight. How many a head reads comes from the head itself: the share of
blocks that holds gamma of what its last query block attends to.

Departures: rows of the proxy are every ``stride``-th of a query block, as in the authors' faster form; a group is as
many neighbouring KV heads as make ``proxies`` groups.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import query_block_chunks, ranks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums


@dataclass(frozen=True)
class ProxyAttn:
    """See the module."""

    gamma: float = 0.9
    proxies: int = 1
    stride: int = 4

    def __call__(self, view: View) -> Selection:
        _, causal = view.forced_and_causal
        rank = ranks(self.scores(view).masked_fill(~causal, -torch.inf))
        blocks = causal.shape[-1]
        most = (self._needed(view).view(1, -1, 1, 1) * causal.sum(-1, keepdim=True) + blocks - 1) // blocks
        rank = rank.repeat_interleave(view.heads // rank.shape[1], 1)
        return Selection((rank < most) & causal)

    def scores(self, view: View) -> torch.Tensor:
        """The largest weight of the proxy in each block: float32 [1, proxies, M, N]."""
        query, key = (
            x.float().unflatten(1, (self.proxies, -1)).mean(2) for x in (view.inputs.q, view.inputs.k)
        )
        keys = torch.arange(view.tokens, device=view.device)
        parts = []
        for chunk in query_block_chunks(view, view.block_q // self.stride * view.tokens):
            rows = torch.arange(chunk.start, chunk.stop, device=view.device).view(-1, 1) * view.block_q
            rows = rows + torch.arange(0, view.block_q, self.stride, device=view.device)
            rows = rows.clamp_max(view.tokens - 1).flatten()
            logits = query[:, :, rows] @ key.transpose(-1, -2) * view.inputs.scale
            weight = logits.masked_fill_(keys > rows.view(-1, 1), -torch.inf).softmax(-1)
            tiles = F.pad(weight, (0, -view.tokens % view.block_k)).unflatten(-1, (-1, view.block_k)).amax(-1)
            parts.append(tiles.unflatten(2, (len(chunk), -1)).amax(3))
        return torch.cat(parts, 2)

    def _needed(self, view: View) -> torch.Tensor:
        """How many blocks hold gamma of the last query block's attention: int64 [H]."""
        first = (view.segment.query_blocks - 1) * view.block_q
        mass = view.row_softmax(torch.arange(first, view.tokens, device=view.device)).mean(2)[0]
        ordered = block_sums(mass, view.block_k).sort(-1, descending=True).values
        return (ordered.cumsum(-1) - ordered < self.gamma).sum(-1)
