"""The kernel contract: a row plan says which keys each query block reads; one call computes the attention.

Two backends (Triton, torch) and an oracle share it. Causality holds inside the kernel whatever the plan says.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch


@dataclass(frozen=True)
class RowPlan:
    """For every (batch, query head, query block): the sorted KV blocks and the single KV columns it reads.

    Shapes: B batch, H query heads, M = ceil(n_q / block_q) query blocks.
    Row r of query block i sits at key position n_k - n_q + i * block_q + r (bottom-right alignment).
    """

    n_q: int
    n_k: int
    block_q: int
    block_k: int
    blocks: torch.Tensor  # int32 [B, H, M, block capacity], ascending; only the first block_count are read
    block_count: torch.Tensor  # int32 [B, H, M]
    columns: torch.Tensor  # int32 [B, H, M, column capacity], ascending, disjoint from the row's blocks
    column_count: torch.Tensor  # int32 [B, H, M]
    dense_rows: torch.Tensor  # bool [B, H, M]: the row reads every KV block up to its diagonal, lists ignored
    key_start: torch.Tensor | None = None  # int32 [B]: first real key of a left-padded prompt
    window: int | None = None  # sliding window: keys with position > query position - window
    softcap: float | None = None  # logits become softcap * tanh(logits / softcap)
    sinks: torch.Tensor | None = None  # float [H]: one always-kept logit per head, with value zero
