"""Pooled top-k (the block-sparse head of MInference, arXiv 2407.02490): a fixed number of KV blocks a query block.

    score(i, j) = mean of query block i . mean of KV block j;  the ``blocks`` best among the causal ones

Departures: the authors pool 64 x 64, here 128 x 64. The blocks that every plan of ours reads (sink, diagonal and the
block before it) are counted among the k, so that the budget is met; a rule without them would do worse.
"""

from __future__ import annotations

from dataclasses import dataclass

from routesparse.engine.lab.rivals.pieces import best_blocks
from routesparse.engine.lab.rivals.rule import Selection, View, token_means


@dataclass(frozen=True)
class PooledTopK:
    """See the module."""

    blocks: int = 100  # k, KV blocks a query block

    def __call__(self, view: View) -> Selection:
        keys = token_means(view.inputs.k, view.block_k).repeat_interleave(view.inputs.groups, 1)
        scores = token_means(view.inputs.q, view.block_q) @ keys.transpose(-1, -2)
        return best_blocks(view, scores, self.blocks)
