"""BigBird (Zaheer et al., arXiv 2007.14062, section 2 and appendix D): window, global and random blocks.

    query block i reads KV block j  iff  j < g,  or j is one of the w last blocks up to the diagonal,
                                    or j is one of r blocks drawn for (head, i) among the others before it

Published for blocks of 64: r = 3, w = 3, g = 2 (internal transformer construction, ITC).

Departures: causal, so the window lies on the left and the random blocks before it; query blocks of 128 rows meet KV
blocks of 64 keys. Blocks are drawn on the CPU from the view's salt and layer, apart for each head, without repetition.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.lab.rivals.pieces import ranks
from routesparse.engine.lab.rivals.rule import Selection, View
from routesparse.engine.seeds import stable_seed


@dataclass(frozen=True)
class BigBird:
    """See the module."""

    random_blocks: int = 3  # r, a query block
    window_blocks: int = 3  # w, KV blocks up to the diagonal
    global_blocks: int = 2  # g

    def __call__(self, view: View) -> Selection:
        kept = self.fixed(view)
        free = view.forced_and_causal[1] & ~kept
        chance = self.chances(view).masked_fill(~free, -1.0)
        return Selection(kept | ((ranks(chance) < self.random_blocks) & free))

    def fixed(self, view: View) -> torch.Tensor:
        """Global blocks and the window: bool [1, 1, M, N]."""
        last_row = torch.arange(1, view.segment.query_blocks + 1, device=view.device) * view.block_q - 1
        diagonal = (last_row.clamp_max(view.tokens - 1) // view.block_k).view(1, 1, -1, 1)
        block = torch.arange(view.segment.key_blocks, device=view.device)
        window = (block <= diagonal) & (block > diagonal - self.window_blocks)
        return window | (block < self.global_blocks) & (block <= diagonal)

    def chances(self, view: View) -> torch.Tensor:
        """What the free blocks of each head and query block are drawn by: float32 [1, H, M, N] in [0, 1)."""
        generator = torch.Generator().manual_seed(stable_seed("bigbird", view.salt, view.layer))
        shape = 1, view.heads, view.segment.query_blocks, view.segment.key_blocks
        return torch.rand(shape, generator=generator).to(view.device)
