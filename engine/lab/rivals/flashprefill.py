"""FlashPrefill (arXiv 2603.06199): a block is kept where its score reaches a share of the row's best one. No sort.

Every query of block i meets the mean key of each block j that lies wholly at or before it:

    score(i, j) = sum over the rows r of block i of exp(q_r . mean k_j / sqrt(d));  kept iff score >= alpha max_j score

The sum is over one common maximum a query block, not a softmax a row, so rows with large logits count most. Also read
are the first ``sink_blocks``, the last ``window_blocks`` up to the diagonal, and all blocks in the last ``last_blocks``
query blocks. alpha is .18 for Llama, .12 for Qwen3 (mixture), .08 for Qwen2 in the authors' code, which this follows;
the paper's text was not at hand, so the wording of the score is inferred from that code.

Departures: blocks of the view's block_q, 128 as theirs, become two KV blocks of 64 keys each; scores are compared as
logarithms (theirs underflow to 0, far below any alpha); rows past the prompt's end do not count (theirs add exp(0) to
the last block, which is read whole anyway). Their optional minimum number of blocks, off by default, is left out.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import query_block_chunks, square_distance, to_kv_blocks
from routesparse.engine.lab.rivals.rule import Selection, View, token_means


@dataclass(frozen=True)
class FlashPrefill:
    """See the module."""

    alpha: float = 0.18  # alpha, share of the row's largest score
    sink_blocks: int = 2
    window_blocks: int = 4
    last_blocks: int = 2

    def __call__(self, view: View) -> Selection:
        score, distance = self.log_scores(view), square_distance(view)
        best = score.amax(-1, keepdim=True)
        kept = (score >= best + math.log(self.alpha)) & (score > -torch.inf)
        kept |= (distance < self.window_blocks) | (distance > distance[:, :1] - self.sink_blocks)
        kept[:, :, -self.last_blocks :] |= self.last_blocks > 0
        return Selection(to_kv_blocks(view, kept & (distance >= 0)))

    def log_scores(self, view: View) -> torch.Tensor:
        """log score(i, j), float32 [1, H, M, M]; -inf where no row of block i has block j behind it."""
        block, blocks = view.block_q, view.segment.query_blocks
        keys = token_means(view.inputs.k, block).repeat_interleave(view.inputs.groups, 1).transpose(-1, -2)
        last_key = torch.arange(1, blocks + 1, device=view.device) * block - 1
        out = []
        for chunk in query_block_chunks(view, block * blocks):
            first, end = chunk.start * block, min(chunk.stop * block, view.tokens)
            row = torch.arange(first, end, device=view.device).view(-1, 1)
            logits = view.inputs.q[:, :, first:end].float() @ keys * view.inputs.scale
            logits.masked_fill_(last_key > row, -torch.inf)
            padded = F.pad(logits, (0, 0, 0, -(end - first) % block), value=-torch.inf)
            out.append(padded.unflatten(2, (-1, block)).logsumexp(3))
        return torch.cat(out, 2)
