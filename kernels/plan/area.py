"""What a plan reads: as a mask (slow), and as its number of (query, key) pairs (fast, no mask). Both are exact.

The pairs of the queries at positions p0..p1 with the keys [a, b), where F(c) = sum over p of max(0, p - c + 1)
counts the pairs with c <= key <= p:

    pairs with a <= key < b and key <= p                   F(a) - F(b)
    of these, with key <= p - window (out of the window)   F(a + window) - F(b + window)
"""

from __future__ import annotations

from typing import TYPE_CHECKING

import torch

if TYPE_CHECKING:
    from routesparse.kernels.plan.row_plan import RowPlan


def mask_of(plan: RowPlan) -> torch.Tensor:
    """The keys that each query reads, bool [B, H, n_q, n_k]: the lists within causality, key_start and window."""
    rows = plan.block_count.shape
    block_live = torch.arange(plan.blocks.shape[-1], device=plan.device) < plan.block_count[..., None]
    listed = torch.zeros((*rows, plan.key_blocks + 1), dtype=torch.bool, device=plan.device)
    listed.scatter_(-1, torch.where(block_live, plan.blocks, plan.key_blocks).long(), True)
    kept = listed[..., :-1].repeat_interleave(plan.block_k, -1)[..., : plan.n_k]

    column_live = torch.arange(plan.columns.shape[-1], device=plan.device) < plan.column_count[..., None]
    single = torch.zeros((*rows, plan.n_k + 1), dtype=torch.bool, device=plan.device)
    single.scatter_(-1, torch.where(column_live, plan.columns, plan.n_k).long(), True)
    kept = kept | single[..., :-1] | plan.dense_rows[..., None]
    return kept.repeat_interleave(plan.block_q, 2)[:, :, : plan.n_q] & allowed_keys(plan)


def allowed_keys(plan: RowPlan) -> torch.Tensor:
    """The keys that any plan of this shape may read, bool [1 or B, 1, n_q, n_k]."""
    key = torch.arange(plan.n_k, device=plan.device)
    query = torch.arange(plan.key_offset, plan.n_k, device=plan.device)[:, None]
    allowed = (key <= query)[None, None]
    if plan.window is not None:
        allowed = allowed & (key > query - plan.window)
    if plan.key_start is not None:
        allowed = allowed & (key >= plan.key_start[:, None, None, None])
    return allowed


def areas_of(plan: RowPlan) -> tuple[torch.Tensor, torch.Tensor]:
    """Numbers of (query, key) pairs that the plan and a dense plan read, two float64 [B, H]; no host sync."""
    block_live = torch.arange(plan.blocks.shape[-1], device=plan.device) < plan.block_count[..., None]
    begin = plan.blocks.long() * plan.block_k
    by_blocks = (_area(plan, begin, begin + plan.block_k) * block_live).sum(-1)
    column_live = torch.arange(plan.columns.shape[-1], device=plan.device) < plan.column_count[..., None]
    column = plan.columns.long()
    by_columns = (_area(plan, column, column + 1) * column_live).sum(-1)
    everything = torch.zeros((*plan.block_count.shape, 1), dtype=torch.int64, device=plan.device)
    dense = _area(plan, everything, everything + plan.n_k).sum(-1)
    kept = torch.where(plan.dense_rows, dense, by_blocks + by_columns)
    return kept.sum(-1).double(), dense.sum(-1).double()


def _area(plan: RowPlan, begin: torch.Tensor, end: torch.Tensor) -> torch.Tensor:
    """Pairs of each row's queries with the keys [begin, end); all three int64 [B, H, M, X]."""
    if plan.key_start is not None:
        begin = begin.clamp(min=plan.key_start.long()[:, None, None, None])
        end = torch.maximum(begin, end)
    first, last = (position[:, None] for position in plan.query_positions())

    def causal_from(key: torch.Tensor) -> torch.Tensor:
        until_last = (last - key + 1).clamp(min=0)
        before_first = (first - key).clamp(min=0)
        return (until_last * (until_last + 1) - before_first * (before_first + 1)) // 2

    area = causal_from(begin) - causal_from(end)
    if plan.window is not None:
        area = area - causal_from(begin + plan.window) + causal_from(end + plan.window)
    return area
