"""What the operations are told of a segment and of the pattern families; torch is not loaded."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from routesparse.kernels.common import head_strides

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

    def arguments(self) -> dict[str, Any]:
        """What kernels ask of a segment, by their arguments' names."""
        return {
            "first_key_ptr": self.first_keys,
            "position": self.position,
            "rows": self.rows,
            "segment_keys": self.keys,
            "query_blocks": self.query_blocks,
            "body_blocks": self.body_blocks,
            "key_blocks": self.key_blocks,
            "BLOCK_Q": self.block_q,
            "BLOCK_K": self.block_k,
            "LOCAL_BLOCKS": self.local_blocks,
        }


@dataclass(frozen=True)
class RankedColumns:
    """Single columns of one family. They are the best ``counts[l]`` of V for level l."""

    ranked: torch.Tensor  # int64 [B, H, V], best first
    levels: torch.Tensor  # uint8 [V], the smallest level that holds the column of each rank
    counts: torch.Tensor  # int32 [levels]
    by_key: torch.Tensor  # int32 [B, H, V], 8 times the key plus the smallest level that holds it, ascending


@dataclass(frozen=True)
class FamilyMaps:
    """Level maps of F families, of any kind and order; a family's number is its place here.

    maps: uint8 [B, H, M, N] each, where B and H may be 1: one map for all prompts or heads.
    """

    maps: tuple[torch.Tensor, ...]
    columns: RankedColumns | None  # single columns that one family reads beside its blocks
    columns_of: int  # that family's number, DENSE where none has columns

    def arguments(self, batch: int, heads: int) -> dict[str, Any]:
        """What kernels ask of the families, by their arguments' names."""
        return {
            "maps": tuple(levels.contiguous() for levels in self.maps),
            "STRIDES": head_strides(self.maps, batch, heads),
            "COLUMNS_OF": self.columns_of,
        }
