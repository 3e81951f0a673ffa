"""Which KV blocks a query block may read and must read, by tensor operations."""

from __future__ import annotations

import torch

from routesparse.kernels.geometry import SegmentGeometry


def diagonal_blocks(geometry: SegmentGeometry) -> tuple[torch.Tensor, torch.Tensor]:
    """KV block of each query block's first row and of its last row: int64 [M, 1] each."""
    index = torch.arange(geometry.query_blocks, device=geometry.first_keys.device)
    first = index * geometry.block_q + geometry.position
    last = (first + geometry.block_q).clamp_max(geometry.keys) - 1
    return (first // geometry.block_k).unsqueeze(-1), (last // geometry.block_k).unsqueeze(-1)


def forced_and_causal(geometry: SegmentGeometry) -> tuple[torch.Tensor, torch.Tensor]:
    """bool [B, 1, M, N] each: blocks that every plan reads, and blocks at or before the diagonal.

    Forced are the sink block (the one that holds the prompt's first real key), the diagonal blocks and
    ``local_blocks`` before them. Blocks before the sink are outside of ``causal`` too.
    """
    first, last = diagonal_blocks(geometry)
    block = torch.arange(geometry.key_blocks, device=first.device)
    sink = (geometry.first_keys // geometry.block_k).view(-1, 1, 1, 1)
    causal = (block <= last) & (block >= sink)
    return ((block == sink) | (block >= first - geometry.local_blocks)) & causal, causal
