"""Lowering: from a block mask and a list of columns to the sorted lists of a row plan.

A cumulative sum gives every kept entry its index in the list, a scatter writes it there. All batches, heads and
query blocks are lowered at once, without a host sync.
"""

from __future__ import annotations

import torch


class PlanError(ValueError):
    """A row plan that breaks its contract (for instance a column inside one of the row's blocks)."""


# blocks, block_count, columns, column_count and dense_rows of a RowPlan
Lists = tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]


def lower(
    block_mask: torch.Tensor,
    place: tuple[int, int, int, int],
    columns: torch.Tensor | None,
    column_count: torch.Tensor | None,
    dense_rows: torch.Tensor | None,
    capacities: tuple[int | None, int | None],
    key_start: torch.Tensor | None,
    window: int | None,
) -> Lists:
    """The lists of ``RowPlan.from_block_mask``, which has the arguments; place: n_q, n_k, block_q, block_k.

    Raises PlanError on wrong shapes or dtypes.
    """
    n_q, n_k, block_q, block_k = place
    block_capacity, column_capacity = capacities
    query_blocks, key_blocks = -(-n_q // block_q), -(-n_k // block_k)
    if block_mask.ndim != 4 or block_mask.shape[2:] != (query_blocks, key_blocks):
        raise PlanError(
            f"block_mask is {list(block_mask.shape)}; n_q {n_q} and n_k {n_k} at {block_q} x {block_k} "
            f"need [B, H, {query_blocks}, {key_blocks}]"
        )
    if block_mask.dtype != torch.bool:
        raise PlanError(f"block_mask is {block_mask.dtype}; pass torch.bool")
    batch, heads = block_mask.shape[:2]
    device = block_mask.device
    dense = torch.zeros((batch, heads, query_blocks), dtype=torch.bool, device=device)
    if dense_rows is not None:
        if dense_rows.shape != dense.shape or dense_rows.dtype != torch.bool:
            raise PlanError(
                f"dense_rows is {dense_rows.dtype} {list(dense_rows.shape)}; pass bool {list(dense.shape)}"
            )
        dense = dense_rows

    first = (torch.arange(query_blocks, device=device) * block_q + (n_k - n_q))[:, None]
    last = (first + (block_q - 1)).clamp(max=n_k - 1)
    block = torch.arange(key_blocks, device=device)
    readable = block <= last // block_k
    if window is not None:
        readable = readable & ((block + 1) * block_k > first - window + 1)
    if key_start is not None:
        readable = readable & ((block + 1) * block_k > key_start[:, None, None, None])
    kept = (block_mask | (block >= first // block_k)) & readable & ~dense[..., None]

    capacity = key_blocks if block_capacity is None else block_capacity
    blocks, block_count = _compact(kept, block.int(), capacity)
    overflow = block_count > capacity

    if columns is None:
        column_lists = torch.zeros((batch, heads, query_blocks, 0), dtype=torch.int32, device=device)
        column_counts = torch.zeros_like(block_count)
    else:
        singles, wanted = _row_columns(
            columns, column_count, kept, first, last, block_k, n_k, window, key_start
        )
        capacity = columns.shape[-1] if column_capacity is None else column_capacity
        column_lists, column_counts = _compact(wanted & ~dense[..., None], singles, capacity)
        overflow = overflow | (column_counts > capacity)
        column_counts = column_counts.masked_fill(overflow, 0)
    return blocks, block_count.masked_fill(overflow, 0), column_lists, column_counts, dense | overflow


def _row_columns(
    columns: torch.Tensor,
    column_count: torch.Tensor | None,
    kept: torch.Tensor,
    first: torch.Tensor,
    last: torch.Tensor,
    block_k: int,
    n_k: int,
    window: int | None,
    key_start: torch.Tensor | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Sorted columns int32 [B, H, 1, V], and which of them each row reads outside its blocks, bool [B, H, M, V]."""
    if columns.ndim != 3 or columns.shape[:2] != kept.shape[:2] or columns.is_floating_point():
        raise PlanError(
            f"columns is {columns.dtype} {list(columns.shape)}; pass an int tensor "
            f"[{kept.shape[0]}, {kept.shape[1]}, V]"
        )
    columns = columns.int()
    if column_count is not None:
        if column_count.shape != columns.shape[:2]:
            raise PlanError(
                f"column_count is {list(column_count.shape)}; pass [{kept.shape[0]}, {kept.shape[1]}]"
            )
        slots = torch.arange(columns.shape[-1], device=columns.device)
        columns = columns.masked_fill(slots >= column_count[..., None], n_k)
    singles = columns.sort(-1).values
    twice = torch.zeros_like(singles, dtype=torch.bool)
    twice[..., 1:] = singles[..., 1:] == singles[..., :-1]
    usable = ~twice & (singles >= 0) & (singles < n_k)
    if key_start is not None:
        usable &= singles >= key_start[:, None, None]

    singles, usable = singles[:, :, None], usable[:, :, None]
    home = (singles.clamp(0, n_k - 1) // block_k).long().expand(-1, -1, kept.shape[2], -1)
    wanted = usable & ~kept.gather(-1, home) & (singles <= last)
    if window is not None:
        wanted &= singles > first - window
    return singles, wanted


def _compact(keep: torch.Tensor, values: torch.Tensor, capacity: int) -> tuple[torch.Tensor, torch.Tensor]:
    """The first ``capacity`` kept values of each row, and how many are kept (perhaps more than fit).

    keep: bool [B, H, M, X]; values: int32, broadcast to it. Returns int32 [B, H, M, capacity] (zeros past
    the count) and int32 [B, H, M].
    """
    rank = keep.cumsum(-1, dtype=torch.int32)
    count = rank[..., -1] if keep.shape[-1] else keep.sum(-1, dtype=torch.int32)
    # Entries that are not kept, or do not fit, all go to one spare slot behind the list.
    target = torch.where(keep & (rank <= capacity), rank - 1, capacity).long()
    lists = torch.zeros((*keep.shape[:-1], capacity + 1), dtype=torch.int32, device=keep.device)
    lists.scatter_(-1, target, values.expand(keep.shape))
    return lists[..., :capacity], count.contiguous()
