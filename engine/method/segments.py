"""Prompt segments: the rows of a routing unit, which is one query head of one layer in one segment.

A segment is a contiguous range of query rows. Rows are numbered from the segment's first row, keys from the
prompt's first key; row r sits at key position ``position + r``. The last rows of the prompt are dense (the tail):
they usually ask the question, and no statement about a mean over rows covers them. Everything measured about a
candidate is measured on the *body*, the segment without its tail, and before the tail override.

The paper's abstract promises a decision per head and prompt segment; its equations drop the segment. We keep it.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np

from routesparse.engine.config import DEFAULT_PRICE
from routesparse.engine.method.policy import LOCAL_BLOCKS
from routesparse.kernels.geometry import SegmentGeometry

if TYPE_CHECKING:
    import torch

    from routesparse.engine.config import RouterConfig


@dataclass(frozen=True)
class Segment:
    """Rows [first, first + rows) of a chunk whose first row sits at key position ``position - first``."""

    index: int
    first: int  # first row, in rows of the chunk
    position: int  # key position of that row
    rows: int
    body: int  # rows before the tail; equal to rows in all but the last segment
    block_q: int
    block_k: int
    price: float = DEFAULT_PRICE  # RouterConfig.price
    call_keys: int = 0  # keys that the last segment of the same call may read; 0: this one's own

    @property
    def floor_share(self) -> float:
        """The share of a query block's rows that a KV block must hold to be worth its time: price * N^(-3/4).

        N counts the KV blocks that the call's last row may read, padding included, so that all segments and prompts of
        a call pay one price; the chunks of a prompt that comes in several calls do not. A price
        per tile alone (no N) lets the loss grow with the prompt, the uniform share (1 / N) lets it fall: at 8,192 and
        131,072 tokens the KL to dense was .008 and .003 nats a token for 1.5 / N (development windows, prose).
        """
        return self.price * (-(-max(self.call_keys, self.keys) // self.block_k)) ** -0.75

    @property
    def keys(self) -> int:
        """Keys that the segment's last row may read."""
        return self.position + self.rows

    @property
    def query_blocks(self) -> int:
        """Query blocks of all rows, the last one perhaps not full."""
        return -(-self.rows // self.block_q)

    @property
    def body_blocks(self) -> int:
        """Query blocks of the body (the tail starts at a query block)."""
        return -(-self.body // self.block_q)

    @property
    def key_blocks(self) -> int:
        """KV blocks that hold those keys, the last one perhaps not full."""
        return -(-self.keys // self.block_k)

    @property
    def phase(self) -> int:
        """Position of the first row inside its KV block; the same for every query block."""
        return self.position % self.block_k

    def geometry(self, first_keys: torch.Tensor) -> SegmentGeometry:
        """The segment as the kernels' operations see it; first_keys int64 [B]."""
        blocks = (self.body_blocks, self.block_q, self.block_k, LOCAL_BLOCKS)
        return SegmentGeometry(self.position, self.rows, self.keys, *blocks, first_keys)

    def base_blocks(self) -> np.ndarray:
        """int64 [query_blocks]: the KV block that each query block's first row sits in."""
        return (self.position + np.arange(self.query_blocks) * self.block_q) // self.block_k

    def last_blocks(self) -> np.ndarray:
        """int64 [query_blocks]: the last KV block that each query block meets (its diagonal's end)."""
        ends = np.minimum((np.arange(self.query_blocks) + 1) * self.block_q, self.rows) - 1
        return (self.position + ends) // self.block_k

    def causal_tiles(self, body_only: bool = True) -> int:
        """KV blocks that dense attention reads over the body's (or all) query blocks."""
        last = self.last_blocks()
        return int((last[: self.body_blocks] if body_only else last).sum()) + (
            self.body_blocks if body_only else self.query_blocks
        )

    def blocks_for_density(self, density: float) -> int:
        """KV blocks a row that keep this share of the body's causal area; see the function of this name."""
        return blocks_for_density(self.last_blocks()[: max(1, self.body_blocks)] + 1, density)


def blocks_for_density(causal: np.ndarray, density: float) -> int:
    """The least number x of KV blocks a row with sum_i min(x, c_i) >= density * sum_i c_i; at least 2.

    causal: int [M], c_i >= 1.
    """
    target = density * causal.sum()
    low, high = 1, int(causal.max())
    while low < high:
        middle = (low + high) // 2
        if np.minimum(middle, causal).sum() >= target:
            high = middle
        else:
            low = middle + 1
    return max(2, low)


def split(n_q: int, n_k: int, config: RouterConfig, first_index: int = 0) -> list[Segment]:
    """The segments of a chunk of n_q rows that ends at key n_k; only the last one has a tail.

    A remainder under half a segment joins the segment before it. The tail starts at a query block, so it holds
    at least ``tail_tokens`` rows (fewer only where the whole segment is shorter).
    """
    size = config.segment_tokens
    count = max(1, (n_q + size // 2) // size)
    starts = [i * size for i in range(count)]
    ends = [*starts[1:], n_q]
    offset = n_k - n_q
    segments = []
    for i, (start, end) in enumerate(zip(starts, ends, strict=True)):
        rows = end - start
        body = rows
        if end == n_q and config.tail_tokens:
            body = max(0, rows - config.tail_tokens) // config.block_q * config.block_q
        place = (first_index + i, start, offset + start, rows, body)
        segments.append(Segment(*place, config.block_q, config.block_k, config.price, n_k))
    return segments
