"""What makes logits, and the logits of a few rows as the naive twins and the audit compute them."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import torch

from routesparse.kernels.common import power_of_two, strides


@dataclass(frozen=True)
class Logits:
    """Queries q [B, H, n, D] and keys k [B, Hkv, >= keys, D] of a layer, and what makes logits of them.

    Query head h meets the keys of KV head h // group. sinks [H]: logits that join every row's softmax. table int64 [2]:
    addresses of q and k that count instead of the tensors' own (a captured graph is replayed on other tensors of the
    same layout); only the kernels take one.
    """

    q: torch.Tensor
    k: torch.Tensor
    scale: float
    softcap: float | None = None
    sinks: torch.Tensor | None = None
    table: torch.Tensor | None = None

    @property
    def group(self) -> int:
        """Query heads of a KV head."""
        return self.q.shape[1] // self.k.shape[1]

    def arguments(self) -> dict[str, Any]:
        """What kernels ask of them, by their arguments' names."""
        import triton

        q, k, table, sinks = self.q, self.k, self.table, self.sinks
        return {
            **strides("q", q),
            **strides("k", k),
            "q_ptr": q,
            "k_ptr": k,
            "table_ptr": q if table is None else table,
            "sinks_ptr": q if sinks is None else sinks,
            "heads": q.shape[1],
            "kv_heads": k.shape[1],
            "group": self.group,
            "scale": self.scale,
            "softcap": self.softcap or 0.0,
            "HEAD": q.shape[3],
            "HEAD_PADDED": power_of_two(q.shape[3]),
            "SOFTCAP": bool(self.softcap),
            "SINKS": sinks is not None,
            "INDIRECT": table is not None,
            # The interpreter's bf16 matrix product is silently wrong.
            "UPCAST": bool(triton.knobs.runtime.interpret),
            "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
        }


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
