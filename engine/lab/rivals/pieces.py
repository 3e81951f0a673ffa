"""What several rules share: sums over the last rows, slashes as tiles, the best blocks, key blocks of query block size.

A *slash* is a diagonal of the attention matrix: the pairs with query position - key position = offset. The kernel reads
aligned tiles of block_q x block_k, so a slash becomes every tile that holds one of its pairs.
"""

from __future__ import annotations

from collections.abc import Iterator

import torch

from routesparse.engine.lab.rivals.rule import Selection, View

MOST_LOGITS = 1 << 26  # of one chunk, all heads together: 256 MiB in float32


def query_block_chunks(view: View, row_logits: int) -> Iterator[range]:
    """Ranges of query blocks, so that ``row_logits`` logits a query block and head stay below MOST_LOGITS."""
    blocks = view.segment.query_blocks
    step = max(1, MOST_LOGITS // (view.heads * row_logits))
    return (range(start, min(start + step, blocks)) for start in range(0, blocks, step))


def last_row_sums(view: View, count: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The exact attention of the last ``count`` rows, summed by key and by offset: float32 [1, H, n] each."""
    n = view.tokens
    count = min(count, n)
    mass = view.row_softmax(torch.arange(n - count, n, device=view.device))
    # With count - 1 zeros before each row, one step to the right in every next row stays on one offset: one sum, where
    # a loop over the rows launched hundreds of kernels a layer, which a rival's time would pay for.
    padded = torch.nn.functional.pad(mass, (count - 1, 0))
    width = padded.shape[-1]
    slashes = padded.as_strided((*mass.shape[:2], count, n), (*padded.stride()[:2], width + 1, 1))
    return mass.sum(2), slashes.sum(2).flip(-1)


def tiles_of_offsets(view: View, offsets: torch.Tensor) -> torch.Tensor:
    """The KV blocks that hold a pair of one of the marked offsets: bool [1, H, n] -> [1, H, M, N]; H may be 1.

    Rows [a, b] and keys [c, d] meet every offset from a - d to b - c, so a tile is read iff a marked one lies there.
    """
    n, device = view.tokens, view.device
    before = torch.nn.functional.pad(offsets.cumsum(-1, dtype=torch.int32), (1, 0))  # marked offsets below x
    row = torch.arange(0, n, view.block_q, device=device).view(-1, 1)
    key = torch.arange(0, n, view.block_k, device=device)
    low = (row - (key + view.block_k).clamp_max(n) + 1).clamp(0, n)
    end = ((row + view.block_q).clamp_max(n) - key).clamp(0, n)
    return before[..., end] > before[..., torch.minimum(low, end)]


def ranks(x: torch.Tensor) -> torch.Tensor:
    """The rank of each entry on the last axis, int64: 0 is the largest; of equal ones the first ranks higher."""
    order = x.argsort(dim=-1, descending=True, stable=True)
    return torch.empty_like(order).scatter_(
        -1, order, torch.arange(x.shape[-1], device=x.device).expand_as(x)
    )


def best_blocks(view: View, scores: torch.Tensor, blocks: int) -> Selection:
    """The ``blocks`` best KV blocks of each query block: scores float [1, H, M, N].

    The blocks that every plan of ours reads (sink, diagonal and the block before it) are counted among them.
    """
    forced, causal = view.forced_and_causal
    ordered = scores.masked_fill(forced, torch.inf).masked_fill(~causal, -torch.inf)
    return Selection((ranks(ordered) < blocks) & causal)


def square_distance(view: View) -> torch.Tensor:
    """Query block - key block where key blocks are as long as query blocks: int64 [M, M]; below 0 in the future."""
    block = torch.arange(view.segment.query_blocks, device=view.device)
    return block.view(-1, 1) - block


def to_kv_blocks(view: View, square: torch.Tensor) -> torch.Tensor:
    """A mask of key blocks as long as query blocks, in the view's KV blocks: bool [1, H, M, M] -> [1, H, M, N]."""
    return square.repeat_interleave(view.block_q // view.block_k, -1)[..., : view.segment.key_blocks]
