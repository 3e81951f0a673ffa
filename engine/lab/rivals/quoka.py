"""QuoKA (arXiv 2602.08722): the queries least like the others choose the keys, by cosine similarity.

For each chunk of a chunked prefill and each KV head: of the chunk's queries, the N_q that are least similar to the
chunk's mean query are kept; a key is worth the largest cosine similarity to one of them, averaged over the query heads
that share it; the chunk reads the best keys of what came before it, and itself.

Departures: a chunk is a query block of 128; keys are chosen in blocks of 64, a block by its best key, since every rule
here runs on the same kernel.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import best_blocks, query_block_chunks
from routesparse.engine.lab.rivals.rule import Selection, View


@dataclass(frozen=True)
class Quoka:
    """See the module."""

    blocks: int = 32  # KV blocks a query block, its own among them
    queries: int = 16  # N_q

    def __call__(self, view: View) -> Selection:
        query = F.pad(view.inputs.q.float(), (0, 0, 0, -view.tokens % view.block_q), mode="replicate")
        query = F.normalize(query, dim=-1).unflatten(2, (-1, view.block_q))  # [1, H, M, block_q, D]
        likeness = (query * F.normalize(query.mean(3, keepdim=True), dim=-1)).sum(-1)
        few = likeness.topk(min(self.queries, view.block_q), -1, largest=False).indices
        kept = query.gather(3, few.unsqueeze(-1).expand(*few.shape, query.shape[-1]))
        kept = kept.unflatten(1, (-1, view.inputs.groups))  # [1, Hkv, groups, M, N_q, D]
        key = F.normalize(view.inputs.k.float(), dim=-1).transpose(-1, -2)[:, :, None, None]
        scores = torch.cat(
            [
                self._worth(view, kept[:, :, :, chunk.start : chunk.stop] @ key)
                for chunk in query_block_chunks(view, self.queries * view.tokens)
            ],
            2,
        )
        return best_blocks(view, scores.repeat_interleave(view.inputs.groups, 1), self.blocks)

    def _worth(self, view: View, cosine: torch.Tensor) -> torch.Tensor:
        """cosine [1, Hkv, groups, M', N_q, n] -> a KV block's worth [1, Hkv, M', N]."""
        of_keys = cosine.amax(4).mean(2)
        padded = F.pad(of_keys, (0, -view.tokens % view.block_k), value=-torch.inf)
        return padded.unflatten(-1, (-1, view.block_k)).amax(-1)
