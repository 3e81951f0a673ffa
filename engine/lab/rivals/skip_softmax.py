"""Skip-softmax (BLASST, arXiv 2512.12087): a tile far below the running maximum is left out after its logits are known.

The kernel walks a query block's key blocks from the first to the diagonal and keeps each row's running maximum m. Of a
block with row maxima s it leaves out exp, values and products where s - m < ln(lambda) in every row.

Departures: keys in tiles of 64 (``tile_keys``); lambda is given, where the authors fit lambda = a / n to a target
(``certify --served`` reads that fit, and its dense layers, from a checkpoint). Every causal block is scored, so its
area counts half a block for the logits and half for the values of those that are kept (``scores_every_block``).
"""

from __future__ import annotations

from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import query_block_chunks
from routesparse.engine.lab.rivals.rule import Selection, View


@dataclass(frozen=True)
class SkipSoftmax:
    """See the module."""

    threshold: float = 0.003  # lambda
    tile_keys: int = 64  # a multiple of the view's block
    dense_layers: frozenset[int] = frozenset()
    scores_every_block = True

    def __call__(self, view: View) -> Selection | None:
        if view.layer in self.dense_layers:
            return None
        blocks, each = view.segment.key_blocks, self.tile_keys // view.block_k
        keys = -(-blocks // each) * self.tile_keys
        parts = []
        for chunk in query_block_chunks(view, view.block_q * view.tokens):
            first, end = chunk.start * view.block_q, min(chunk.stop * view.block_q, view.tokens)
            # Differences of logits are ratios of the softmax, whose running maximum is that of the logits.
            mass = view.row_softmax(torch.arange(first, end, device=view.device))
            peaks = F.pad(mass, (0, keys - view.tokens)).unflatten(-1, (-1, self.tile_keys)).amax(-1)
            kept = peaks >= self.threshold * peaks.cummax(-1).values
            kept = F.pad(kept, (0, 0, 0, first - end + len(chunk) * view.block_q))
            parts.append(kept.unflatten(2, (-1, view.block_q)).any(3))
        return Selection(torch.cat(parts, 2).repeat_interleave(each, -1)[..., :blocks])
