"""Means of blocks by tensor operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F


def block_means(
    x: torch.Tensor,
    first: int,
    rows: int,
    block: int,
    low: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    place: int = 0,
) -> torch.Tensor:
    """Means of blocks of x[:, :, first : first + rows], of rows from low int64 [B] on: float32 [B, H, blocks, D].

    A block without such a row has mean 0. table, place: the entry of the table of addresses that counts instead of
    x's own (as in ``block_lse``).
    """
    values = x[:, :, first : first + rows].float()
    at = torch.arange(rows, device=x.device)
    real = torch.ones(1, rows, dtype=torch.bool, device=x.device)
    if low is not None:
        real = at >= low.view(-1, 1)
        values = values * real.view(len(values), 1, -1, 1)
    blocks = -(-rows // block)
    padding = -rows % block
    sums = F.pad(values, (0, 0, 0, padding)).unflatten(2, (blocks, block)).sum(3)
    counts = F.pad(real, (0, padding)).unflatten(1, (blocks, block)).sum(2).clamp_min(1)
    return sums / counts.view(len(counts), 1, -1, 1)
