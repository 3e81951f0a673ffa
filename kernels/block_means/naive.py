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


def pooled_scores(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> torch.Tensor:
    """Scaled products of mean queries [B, H, M, D] and mean keys [B, Hkv, N, D], float32: float16 [B, H, M, N].

    Operands and results are rounded to float16, products are summed in float32; queries are scaled before they are
    rounded, since a float16 holds no unscaled product of large activations.
    """
    grouped, halves = halved(queries, keys, scale)
    scores = grouped.float() @ halves.float().transpose(-1, -2)
    return scores.half().view(*queries.shape[:3], keys.shape[2])


def halved(queries: torch.Tensor, keys: torch.Tensor, scale: float) -> tuple[torch.Tensor, torch.Tensor]:
    """Scaled queries of each KV head [B, Hkv, G M, D] and keys [B, Hkv, N, D], float16."""
    groups = queries.shape[1] // keys.shape[1]
    return (queries * scale).half().unflatten(1, (-1, groups)).flatten(2, 3), keys.half()
