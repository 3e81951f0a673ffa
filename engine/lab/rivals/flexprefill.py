"""FlexPrefill (arXiv 2502.20766): each head picks columns and slashes, or its own blocks, by the last block of queries.

The last B queries' exact attention gives a mean by key (columns) and by offset (slashes). A head's budgets are the
fewest columns and slashes whose cumulative mean reaches gamma. The same queries' mean against the mean keys estimates
the mass of key blocks; where it agrees with the true one, sqrt(JSD) < tau, pooled scores are trusted: the head is
*query-aware* and also reads the largest entries of softmax(mean query . mean key) over the whole matrix of blocks,
whose cumulative sum stays within gamma x (number of query blocks), with the least budgets of columns and slashes. The
first column and the diagonal are always read; a prompt of at most ``least_tokens`` or two blocks runs dense.

    JSD(p, q) = KL(p | m) / 2 + KL(q | m) / 2,  m = (p + q) / 2

Read as the authors' code has it: budgets are counted in tokens and become tokens // B + 1 blocks; columns and slashes
are then ranked by their sums over blocks. Offsets are grouped from the oldest on: where B does not divide n, the group
at the diagonal is short and the others are shifted by as much. A query-aware head's share is cumulative over the whole
matrix, not row by row as in the paper's equation.

Departures: entries with p = 0 count 0 in the JSD (upstream's give NaN, and with it always columns and slashes); a short
last block is pooled over its own tokens. B is the view's block_q, 128; a block of keys becomes two KV blocks of 64.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.pieces import last_row_sums, ranks, square_distance, to_kv_blocks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums, token_means


@dataclass(frozen=True)
class FlexPrefill:
    """See the module."""

    gamma: float = 0.9  # gamma, cumulative share
    tau: float = 0.1  # tau, largest sqrt(JSD) of a query-aware head
    least_tokens: int = 1_024  # minimum budget of columns and of slashes

    def __call__(self, view: View) -> Selection | None:
        block, blocks = view.block_q, view.segment.query_blocks
        least = -(-self.least_tokens // block)
        if view.tokens <= block * max(2, least):
            return None
        # [1, H, n]: the mean attention of the last queries by key and by offset.
        column, slash = (sums / min(block, view.tokens) for sums in last_row_sums(view, block))
        column_blocks = block_sums(column, block)
        slash_blocks = block_sums(slash.flip(-1), block).flip(-1)

        keys = token_means(view.inputs.k, block).repeat_interleave(view.inputs.groups, 1).transpose(-1, -2)
        query = view.inputs.q[:, :, -block:].float().mean(2, keepdim=True)
        estimate = (query @ keys * view.inputs.scale).squeeze(2).softmax(-1)
        aware = _root_jsd(estimate, column_blocks) < self.tau

        column_blocks[..., 0] = torch.inf
        slash_blocks[..., 0] = torch.inf
        kept_columns, kept_slashes = (
            ranks(pooled) < torch.where(aware, least, self._blocks(mean, block, least)).unsqueeze(-1)
            for pooled, mean in ((column_blocks, column), (slash_blocks, slash))
        )
        distance = square_distance(view)
        scores = token_means(view.inputs.q, block) @ keys * view.inputs.scale
        own = self._of_matrix(scores.masked_fill_(distance < 0, -torch.inf).softmax(-1), blocks)
        kept = kept_columns.unsqueeze(2) | kept_slashes[..., distance.clamp_min(0)]
        kept |= own & aware[..., None, None]
        return Selection(to_kv_blocks(view, kept & (distance >= 0)))

    def _blocks(self, mean: torch.Tensor, block: int, least: int) -> torch.Tensor:
        """Each head's budget in blocks: [1, H, n] -> int64 [1, H]."""
        shares = mean.sort(dim=-1, descending=True).values.cumsum(-1)
        return ((((shares <= self.gamma).sum(-1) + 1) // block) + 1).clamp_min(least)

    def _of_matrix(self, weight: torch.Tensor, blocks: int) -> torch.Tensor:
        """The largest entries of each head's matrix [1, H, M, M] that sum to at most gamma M: bool."""
        ordered, order = weight.double().flatten(2).sort(dim=-1, descending=True)
        kept = ordered.cumsum(-1) <= self.gamma * blocks
        return torch.zeros_like(kept).scatter_(-1, order, kept).view(weight.shape)


def _root_jsd(p: torch.Tensor, q: torch.Tensor) -> torch.Tensor:
    """Square root of the Jensen-Shannon divergence over the last axis."""
    middle = ((p + q) / 2).clamp_min(torch.finfo(p.dtype).tiny)
    return sum(torch.special.xlogy(x, x / middle).sum(-1) / 2 for x in (p, q)).clamp_min(0.0).sqrt()
