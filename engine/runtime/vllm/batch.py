"""vLLM's batch: which of its rows are whose, and their keys and values read back from the paged cache.

A batch is packed: the new tokens of all its requests one behind the other, [tokens, H, d]. A *row* is one request's
part of it: a whole prompt, a chunk of one (chunked prefill), or one token that is decoded. Keys and values of earlier
chunks lie in pages of a fixed number of tokens, which the row's line of the block table names in order.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

import torch

from routesparse.engine.device.constants import to_device

# A page store to its keys and values, each [pages, Hkv, tokens of a page, d].
Split = Callable[[torch.Tensor, int], tuple[torch.Tensor, torch.Tensor]]


@dataclass(frozen=True)
class Row:
    """One request's part of a batch."""

    request: str
    index: int  # line of the block table
    first: int  # its first token in the packed batch
    tokens: int
    context: int  # tokens of the same request that earlier batches computed
    prompt_tokens: int

    @property
    def keys(self) -> int:
        """Keys that the row's last token may read."""
        return self.context + self.tokens

    @property
    def place(self) -> slice:
        return slice(self.first, self.first + self.tokens)

    @property
    def ends_prompt(self) -> bool:
        return self.keys >= self.prompt_tokens


def rows_of(
    requests: Sequence[str],
    scheduled: Mapping[str, int],
    computed: Sequence[int],
    prompt_tokens: Mapping[str, int],
) -> tuple[Row, ...]:
    """The rows of a batch. requests: ids in the batch's order; computed: tokens before this batch, in that order."""
    rows, first = [], 0
    for index, request in enumerate(requests):
        tokens = scheduled[request]
        rows.append(Row(request, index, first, tokens, int(computed[index]), prompt_tokens[request]))
        first += tokens
    return tuple(rows)


def side_by_side(cache: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of FLASH_ATTN's and TRITON_ATTN's pages [pages, Hkv, tokens, 2 d], each token's side by side."""
    return cache[..., :head_dim], cache[..., head_dim : 2 * head_dim]


def keys_transposed(cache: torch.Tensor, head_dim: int) -> tuple[torch.Tensor, torch.Tensor]:
    """Keys and values of CPU_ATTN's pages [pages, Hkv, tokens, 2 d], for its kernels "vec" and "vec16".

    A page of a head holds all its keys, as a matrix [d, tokens], and then all its values, [tokens, d].
    """
    pages, heads, tokens, _ = cache.shape
    halves = cache.reshape(pages, heads, 2, tokens * head_dim)
    keys = halves[:, :, 0].reshape(pages, heads, head_dim, tokens).transpose(2, 3)
    return keys, halves[:, :, 1].reshape(pages, heads, tokens, head_dim)


def gathered(
    cache: torch.Tensor, table: torch.Tensor, tokens: int, head_dim: int, split: Split
) -> tuple[torch.Tensor, torch.Tensor]:
    """The first keys and values of a request, contiguous [1, Hkv, tokens, d]; table: its page numbers in order."""
    size = cache.shape[2]
    pages = cache[table[: -(-tokens // size)].long()]

    def joined(part: torch.Tensor) -> torch.Tensor:
        _, heads, _, width = part.shape
        return part.transpose(0, 1).reshape(heads, -1, width)[None, :, :tokens].contiguous()

    keys, values = split(pages, head_dim)
    return joined(keys), joined(values)


def packed(tokens: torch.Tensor) -> torch.Tensor:
    """[n, H, d] as contiguous [1, H, n, d]."""
    return tokens.transpose(0, 1)[None].contiguous()


def token_places(rows: Sequence[Row], device: torch.device) -> torch.Tensor:
    """int64: where the tokens of these rows stand in the packed batch, in the rows' order."""
    ranges = [torch.arange(row.first, row.first + row.tokens) for row in rows]
    return to_device(torch.cat(ranges), device) if ranges else torch.empty(0, dtype=torch.long, device=device)
