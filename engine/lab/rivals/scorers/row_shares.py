"""From a row's score of keys to a query block's score of KV blocks, and the best of them: what all scorers share.

A paper's score stands in for a row's logits over units of keys (single keys, or pages of them). A softmax over the
units that begin at or before the row gives shares; a KV block has the sum of its units' shares, and a query block's
score is their root mean square over its rows, as in kernels/block_score. Within a row the order of units is the
paper's.
"""

from __future__ import annotations

from collections.abc import Callable

import torch
import torch.nn.functional as F

from routesparse.engine.lab.rivals.pieces import query_block_chunks, ranks
from routesparse.engine.lab.rivals.rule import Selection, View, block_sums


def shares_over_rows(
    view: View, logits: Callable[[torch.Tensor, int], torch.Tensor], unit: int = 1
) -> torch.Tensor:
    """float32 [1, H, M, N]. logits(rows int64 [R], units) is [1, H, R, units], of the first units of ``unit`` keys.

    unit divides block_k. H may be 1. What logits says of units that begin after their row is not read.
    """
    start, out = torch.arange(0, view.tokens, unit, device=view.device), []
    for chunk in query_block_chunks(view, view.block_q * len(start)):
        end = min(chunk.stop * view.block_q, view.tokens)
        rows = torch.arange(chunk.start * view.block_q, end, device=view.device)
        # No row of the chunk reads a unit that begins at its end or later.
        begun = start[: -(-end // unit)]
        found = logits(rows, len(begun)).float().masked_fill(begun > rows.view(-1, 1), -torch.inf).softmax(-1)
        squares = block_sums(found, view.block_k // unit).square()
        squares = F.pad(squares, (0, view.segment.key_blocks - squares.shape[-1]))
        sizes = block_sums(torch.ones(len(rows), device=view.device), view.block_q).view(-1, 1)
        out.append((block_sums(squares.transpose(-1, -2), view.block_q).transpose(-1, -2) / sizes).sqrt())
    return torch.cat(out, 2)


def best_blocks(view: View, scores: torch.Tensor, blocks: int) -> Selection:
    """The ``blocks`` best KV blocks of each query block: scores float [1, H, M, N].

    The blocks that every plan of ours reads (sink, diagonal and the block before it) are counted among them.
    """
    forced, causal = view.forced_and_causal
    ordered = scores.masked_fill(forced, torch.inf).masked_fill(~causal, -torch.inf)
    return Selection((ranks(ordered) < blocks) & causal)
