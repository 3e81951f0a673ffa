"""What a row plan promises, checked: its shapes when it is made, its values and its neighbours when somebody asks."""

from __future__ import annotations

from collections.abc import Sequence
from itertools import pairwise
from typing import Any, TypeAlias

import torch

from routesparse.kernels.plan.lowering import PlanError

RowPlan: TypeAlias = Any  # of row_plan.py, which imports this file


def check_static(plan: RowPlan) -> None:
    """Sizes, shapes, dtypes and devices; reads no tensor value. Raises PlanError."""
    if not 1 <= plan.n_q <= plan.n_k:
        raise PlanError(f"n_q {plan.n_q}, n_k {plan.n_k}: a plan needs 1 <= n_q <= n_k")
    if plan.block_q < 1 or plan.block_k < 1:
        raise PlanError(f"block_q {plan.block_q}, block_k {plan.block_k}: block sizes are positive")
    if plan.window is not None and plan.window < 1:
        raise PlanError(
            f"window {plan.window}: a window holds at least the query's own key; pass >= 1 or None"
        )
    if plan.softcap is not None and not plan.softcap > 0:
        raise PlanError(f"softcap {plan.softcap}: pass a positive number or None")
    if plan.block_count.ndim != 3:
        raise PlanError(f"block_count is {list(plan.block_count.shape)}; pass [B, H, M]")
    rows = (*plan.block_count.shape[:2], plan.query_blocks)
    _expect("block_count", plan.block_count, rows, torch.int32, plan)
    _expect("column_count", plan.column_count, rows, torch.int32, plan)
    _expect("dense_rows", plan.dense_rows, rows, torch.bool, plan)
    _expect("blocks", plan.blocks, (*rows, plan.blocks.shape[-1]), torch.int32, plan)
    _expect("columns", plan.columns, (*rows, plan.columns.shape[-1]), torch.int32, plan)
    if plan.key_start is not None:
        _expect("key_start", plan.key_start, rows[:1], torch.int32, plan)
    if plan.sinks is not None:
        _expect("sinks", plan.sinks, rows[1:2], None, plan)


def _expect(
    name: str, tensor: torch.Tensor, shape: tuple[int, ...], dtype: torch.dtype | None, plan: RowPlan
) -> None:
    if tuple(tensor.shape) != shape:
        raise PlanError(f"{name} is {list(tensor.shape)}; this plan needs {list(shape)}")
    if dtype is None and not tensor.is_floating_point():
        raise PlanError(f"{name} is {tensor.dtype}; pass a floating dtype")
    if dtype is not None and tensor.dtype != dtype:
        raise PlanError(f"{name} is {tensor.dtype}; pass {dtype}")
    if tensor.device != plan.device:
        raise PlanError(f"{name} lies on {tensor.device}, block_count on {plan.device}; use plan.to(device)")


def check_values(plan: RowPlan) -> None:
    """The whole contract of RowPlan, see ``RowPlan.validate``. Raises PlanError for the first row that breaks it."""
    if plan.key_start is not None and bool(((plan.key_start < 0) | (plan.key_start > plan.n_k)).any()):
        raise PlanError(f"key_start {plan.key_start.tolist()}: every value must lie in 0 to n_k = {plan.n_k}")
    first, last = plan.query_positions()
    last_block = (last // plan.block_k)[:, None]
    _check_list(plan, "block", plan.blocks, plan.block_count, last_block)
    _check_list(plan, "column", plan.columns, plan.column_count, last[:, None])

    # Past its count a list may hold anything; a value above all blocks keeps it ascending for the binary search.
    slots = torch.arange(plan.blocks.shape[-1], device=plan.device)
    blocks = plan.blocks.long().masked_fill(slots >= plan.block_count[..., None], plan.key_blocks)
    live = torch.arange(plan.columns.shape[-1], device=plan.device) < plan.column_count[..., None]
    inside = _contains(blocks, plan.columns.long() // plan.block_k) & live & ~plan.dense_rows[..., None]
    if bad := _first(inside):
        column = int(plan.columns[bad])
        raise PlanError(
            f"{_where(bad)}: column {column} lies in the row's block {column // plan.block_k}, its key would "
            "count twice; keep columns disjoint from blocks"
        )

    # The diagonal: every block that holds one of the row's query positions, unless padding hides all of it.
    steps = torch.arange(plan.block_q // plan.block_k + 2, device=plan.device)
    diagonal = (first // plan.block_k)[:, None] + steps
    needed = (diagonal <= last_block).expand(plan.batch, plan.heads, -1, -1)
    if plan.key_start is not None:
        needed = needed & ((diagonal + 1) * plan.block_k > plan.key_start[:, None, None, None])
    wanted = diagonal.expand(plan.batch, plan.heads, -1, -1).contiguous()
    if bad := _first(needed & ~_contains(blocks, wanted) & ~plan.dense_rows[..., None]):
        raise PlanError(
            f"{_where(bad)}: diagonal block {int(wanted[bad])} is missing; a sparse row lists every KV block "
            f"that its query positions {int(first[bad[2]])} to {int(last[bad[2]])} meet"
        )


def _check_list(
    plan: RowPlan, name: str, lists: torch.Tensor, count: torch.Tensor, last: torch.Tensor
) -> None:
    """Check that counts fit the capacity, and that sparse rows' entries strictly ascend within 0 to last [M, 1]."""
    capacity = lists.shape[-1]
    if bad := _first((count < 0) | (count > capacity)):
        raise PlanError(f"{_where(bad)}: {name}_count {int(count[bad])} is outside 0 to capacity {capacity}")
    live = torch.arange(capacity, device=lists.device) < count[..., None]
    live &= ~plan.dense_rows[..., None]
    if bad := _first(live & ((lists < 0) | (lists > last))):
        raise PlanError(
            f"{_where(bad)}: {name} {int(lists[bad])} is out of range; "
            f"this row may list 0 to {int(last[bad[2], 0])}"
        )
    if bad := _first(live[..., 1:] & (lists[..., 1:] <= lists[..., :-1])):
        pair = lists[bad[:3]][bad[3] : bad[3] + 2].tolist()
        raise PlanError(
            f"{_where(bad)}: {name}s {pair[0]}, {pair[1]} are not ascending; sort and deduplicate"
        )


def _contains(blocks: torch.Tensor, wanted: torch.Tensor) -> torch.Tensor:
    """Which of the wanted blocks [.., W] are in the ascending list [.., capacity], bool [.., W]."""
    if blocks.shape[-1] == 0:
        return torch.zeros_like(wanted, dtype=torch.bool)
    place = torch.searchsorted(blocks.contiguous(), wanted.contiguous()).clamp(max=blocks.shape[-1] - 1)
    return blocks.gather(-1, place) == wanted


def _first(bad: torch.Tensor) -> tuple[int, ...] | None:
    """Index of the first true entry, or None without one."""
    found = bad.nonzero()
    return tuple(found[0].tolist()) if len(found) else None


def _where(index: tuple[int, ...]) -> str:
    return f"batch {index[0]}, head {index[1]}, query block {index[2]}"


def check_consecutive(plans: Sequence[RowPlan]) -> None:
    """Raise PlanError unless the plans are consecutive segments of one chunk (see ``RowPlan.concat``)."""
    if not plans:
        raise PlanError("concat got no plan; pass at least one")
    for at, (plan, following) in enumerate(pairwise(plans)):
        if plan.n_q % plan.block_q:
            raise PlanError(
                f"segment {at} has {plan.n_q} rows; all but the last need a multiple of "
                f"block_q {plan.block_q}"
            )
        if following.key_offset != plan.n_k:
            raise PlanError(
                f"segment {at + 1} starts at key {following.key_offset} but segment {at} ends at {plan.n_k}; "
                "give segments in order, with n_k one past their last row's key"
            )
        for name in ("batch", "heads", "block_q", "block_k", "window", "softcap", "device"):
            if getattr(plan, name) != getattr(following, name):
                raise PlanError(
                    f"segments {at} and {at + 1} differ in {name}: "
                    f"{getattr(plan, name)} and {getattr(following, name)}"
                )
        for name in ("key_start", "sinks"):
            if not _same(getattr(plan, name), getattr(following, name)):
                raise PlanError(
                    f"segments {at} and {at + 1} differ in {name}; build both with the same tensor"
                )


def _same(left: torch.Tensor | None, right: torch.Tensor | None) -> bool:
    # One shared tensor is the usual case and needs no comparison, hence no host sync.
    if left is right:
        return True
    return left is not None and right is not None and torch.equal(left, right)
