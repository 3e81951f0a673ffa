"""DHSA (Xiong et al., arXiv 2510.24606, section 3): chunks of queries meet chunks of keys, tokens inherit the score.

The prompt is cut into chunks C; a chunk of length c is the mean of its tokens' vectors times sqrt(c), and

    S_c(a, b) = Q_a . K_b,   Q_a = sum over a of q / sqrt(|a|),   K_b likewise;   S_t(row, key) = S_c of their chunks

Each token reads the N_b keys of largest S_t. Here a row's S_t times 1/sqrt(d) stands in for its logits over chunks of
keys (scorers/row_shares.py).

Departures: the authors' chunks have the lengths that a trained predictor of boundaries finds; that predictor is absent
here, and all chunks have ``chunk`` tokens, the last one perhaps fewer. So this is the hierarchy without what makes it
dynamic, and no measure of their result. 128 rows share KV blocks of 64 keys.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.rule import Selection, View, block_sums
from routesparse.engine.lab.rivals.scorers.row_shares import best_blocks, shares_over_rows


@dataclass(frozen=True)
class Dhsa:
    """See the module."""

    blocks: int = 32  # KV blocks a query block
    chunk: int = 16  # tokens, divides block_k

    def __call__(self, view: View) -> Selection:
        return best_blocks(view, self.scores(view), self.blocks)

    def scores(self, view: View) -> torch.Tensor:
        """Root mean square over rows of softmax(S_t) summed over KV blocks: float32 [1, H, M, N]."""
        similarity = self.similarity(view)
        return shares_over_rows(
            view, lambda rows, units: similarity[:, :, rows // self.chunk, :units], self.chunk
        )

    def similarity(self, view: View) -> torch.Tensor:
        """S_c times the attention's scale: float32 [1, H, C, C]."""
        sizes = block_sums(torch.ones(view.tokens, device=view.device), self.chunk).sqrt()
        q, k = (
            (block_sums(x.float().transpose(-1, -2), self.chunk) / sizes).transpose(-1, -2)
            for x in (view.inputs.q, view.inputs.k)
        )
        return q @ k.repeat_interleave(view.inputs.groups, 1).transpose(-1, -2) * view.inputs.scale
