"""Where a segment's query blocks stand on the key axis, as the operations see it; torch is not loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    import torch


@dataclass(frozen=True)
class SegmentGeometry:
    """Rows of a segment at key positions [position, keys), left padding aside."""

    position: int
    rows: int
    keys: int
    body_blocks: int
    block_q: int
    block_k: int
    local_blocks: int  # KV blocks before the diagonal ones that every plan reads
    first_keys: torch.Tensor  # int64 [B], the first real key of each prompt

    @property
    def query_blocks(self) -> int:
        """M."""
        return -(-self.rows // self.block_q)

    @property
    def key_blocks(self) -> int:
        """N."""
        return -(-self.keys // self.block_k)
