"""Scaled logits of a few rows, as the naive twins and the audit compute them."""

from __future__ import annotations

from collections.abc import Iterator

import torch


def capped_logits(q: torch.Tensor, k: torch.Tensor, scale: float, softcap: float | None) -> torch.Tensor:
    """Scaled logits in float32: q [P, D], k [K, D] -> [P, K]."""
    logits = (q @ k.transpose(-1, -2)).float() if q.dtype != torch.float32 else q @ k.transpose(-1, -2)
    logits *= scale
    return softcap * torch.tanh(logits / softcap) if softcap else logits


def row_queries(q: torch.Tensor, rows: torch.Tensor) -> torch.Tensor:
    """Queries of the given rows: q [B, H, n, D], rows int64 [B, H, P] -> [B, H, P, D]."""
    return q.gather(2, rows.unsqueeze(-1).expand(-1, -1, -1, q.shape[-1]))


def key_chunks(keys: int, block_k: int, size: int) -> Iterator[tuple[int, int]]:
    """Ranges of about ``size`` keys, of whole KV blocks: a KV head's chunk of scores stays in the CPU's cache."""
    step = max(block_k, size // block_k * block_k)
    for start in range(0, keys, step):
        yield start, min(keys, start + step)
