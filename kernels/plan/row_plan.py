"""The row plan: which keys each query block reads (paper, section 3.4, step 6: one plan for all heads of a layer).

Positions are bottom-right aligned: query row r sits at key position n_k - n_q + r, so a chunk of a longer prompt
(n_q < n_k) reads the keys before it.

What a plan reads is counted without a mask, exactly: pairs of the queries at positions p0..p1 with the keys [a, b),
where F(c) = sum over p of max(0, p - c + 1) counts the pairs with c <= key <= p:

    pairs with a <= key < b and key <= p                   F(a) - F(b)
    of these, with key <= p - window (out of the window)   F(a + window) - F(b + window)
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from typing import Any

import torch

from routesparse.kernels.plan.lowering import PlanError, lower


@dataclass(frozen=True, eq=False)
class RowPlan:
    """The keys that every query block reads: a sorted list of KV blocks and one of single keys ("columns").

    Shapes: B batch, H query heads, M = ceil(n_q / block_q) query blocks. A *row of the plan* is one
    (batch, query head, query block); query r of query block i sits at key position n_k - n_q + i * block_q + r.

    A row is dense (``dense_rows``; its lists are ignored) or sparse. A sparse row must list its diagonal: every
    KV block that holds one of its own query positions (two or three of them at 128 x 64). Neither list goes past
    the row's last query position. Construction checks shapes, dtypes and devices; ``validate`` reads the values.
    Both raise PlanError.
    """

    n_q: int
    n_k: int
    block_q: int
    block_k: int
    blocks: torch.Tensor  # int32 [B, H, M, block capacity], ascending; the first block_count count
    block_count: torch.Tensor  # int32 [B, H, M]
    columns: torch.Tensor  # int32 [B, H, M, column capacity], ascending, in none of the row's blocks
    column_count: torch.Tensor  # int32 [B, H, M]
    dense_rows: torch.Tensor  # bool [B, H, M]: the row reads every KV block up to its diagonal
    key_start: torch.Tensor | None = None  # int32 [B]: first real key of a left-padded prompt
    window: int | None = None  # sliding window: keys with position > query position - window
    softcap: float | None = None  # logits become softcap * tanh(logits / softcap)
    sinks: torch.Tensor | None = None  # float [H]: one always-kept logit per head, with value zero

    def __post_init__(self) -> None:
        check_static(self)

    @property
    def batch(self) -> int:
        """B."""
        return self.block_count.shape[0]

    @property
    def heads(self) -> int:
        """H, query heads."""
        return self.block_count.shape[1]

    @property
    def query_blocks(self) -> int:
        """M = ceil(n_q / block_q)."""
        return -(-self.n_q // self.block_q)

    @property
    def key_blocks(self) -> int:
        """ceil(n_k / block_k)."""
        return -(-self.n_k // self.block_k)

    @property
    def key_offset(self) -> int:
        """Key position of the first query row: n_k - n_q."""
        return self.n_k - self.n_q

    @property
    def device(self) -> torch.device:
        """The device of the lists."""
        return self.block_count.device

    def query_positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Key positions of each query block's first and last query, two int64 [M]; no host sync."""
        first = torch.arange(self.query_blocks, device=self.device) * self.block_q + self.key_offset
        return first, (first + (self.block_q - 1)).clamp(max=self.n_k - 1)

    def validate(self) -> RowPlan:
        """Check every value; return the plan itself, or raise PlanError naming batch, head and query block.

        Checked of a sparse row: its counts are within capacity, its lists strictly ascend and end at its last
        query position, no column lies in a listed block, and every diagonal block is listed (unless
        ``key_start`` hides it). Synchronises with the device; meant for tests and new builders.
        """
        check_values(self)
        return self

    def to(self, device: torch.device | str) -> RowPlan:
        """The same plan with every tensor on ``device``."""
        tensors: dict[str, Any] = {
            field.name: value.to(device)
            for field in dataclasses.fields(self)
            if isinstance(value := getattr(self, field.name), torch.Tensor)
        }
        return dataclasses.replace(self, **tensors)

    def select_heads(self, heads: Sequence[int]) -> RowPlan:
        """The plan of these query heads, in this order; the caller selects q, k and v to match."""
        index = torch.as_tensor(heads, device=self.device)
        names = ("blocks", "block_count", "columns", "column_count", "dense_rows")
        tensors: dict[str, Any] = {name: getattr(self, name).index_select(1, index) for name in names}
        sinks = None if self.sinks is None else self.sinks.index_select(0, index)
        return dataclasses.replace(self, sinks=sinks, **tensors)

    def to_mask(self) -> torch.Tensor:
        """The keys that each query reads, bool [B, H, n_q, n_k]. Slow; for oracles and drawings."""
        return mask_of(self)

    @property
    def density(self) -> float:
        """``head_density`` over all batches and heads together, weighted by their pairs. Synchronises."""
        kept, dense = areas_of(self)
        return float(kept.sum() / dense.sum().clamp(min=1))

    def head_density(self) -> torch.Tensor:
        """Density per head, float64 [B, H]: pairs that the plan reads / pairs that a dense plan reads. No host sync.

        Both count (query, key) pairs exactly, with the plan's ``key_start`` and ``window``, so a block that the
        diagonal cuts counts by its causal part. This is the definition; whatever computes a density faster,
        from what it knows about the plan, is tested against this method.
        """
        kept, dense = areas_of(self)
        return kept / dense.clamp(min=1)

    @staticmethod
    def dense(
        batch: int,
        heads: int,
        n_q: int,
        n_k: int,
        block_q: int = 128,
        block_k: int = 64,
        device: torch.device | str = "cpu",
        *,
        key_start: torch.Tensor | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> RowPlan:
        """Plain causal attention: every row is dense, the lists have no capacity."""
        shape = (batch, heads, -(-n_q // block_q))
        empty = torch.zeros((*shape, 0), dtype=torch.int32, device=device)
        count = torch.zeros(shape, dtype=torch.int32, device=device)
        every = torch.ones(shape, dtype=torch.bool, device=device)
        return RowPlan(
            n_q, n_k, block_q, block_k, empty, count, empty, count, every, key_start, window, softcap, sinks
        )

    @staticmethod
    def from_block_mask(
        block_mask: torch.Tensor,
        n_q: int,
        n_k: int,
        block_q: int = 128,
        block_k: int = 64,
        *,
        columns: torch.Tensor | None = None,
        column_count: torch.Tensor | None = None,
        dense_rows: torch.Tensor | None = None,
        block_capacity: int | None = None,
        column_capacity: int | None = None,
        key_start: torch.Tensor | None = None,
        window: int | None = None,
        softcap: float | None = None,
        sinks: torch.Tensor | None = None,
    ) -> RowPlan:
        """The plan that reads a mask's KV blocks and a list of columns; built on the device, without a host sync.

        Args:
            block_mask: bool [B, H, M, ceil(n_k / block_k)]. The diagonal blocks are added; blocks past the
                diagonal, wholly before ``key_start`` or wholly outside the window are dropped.
            columns: int [B, H, V], single keys for every row of the head, in any order. A row drops a column
                that lies in one of its blocks, past its last query position, before ``key_start`` or outside the
                window; a column that is listed twice is read once.
            column_count: int [B, H], how many of the V columns count; all of them when None.
            dense_rows: bool [B, H, M]; those rows get empty lists.
            block_capacity, column_capacity: lengths of the lists (default: all blocks, V columns). A row that
                needs more becomes dense.

        Raises PlanError on wrong shapes or dtypes.
        """
        blocks, block_count, singles, single_count, dense = lower(
            block_mask,
            n_q,
            n_k,
            block_q,
            block_k,
            columns,
            column_count,
            dense_rows,
            block_capacity,
            column_capacity,
            key_start,
            window,
        )
        lists = blocks, block_count, singles, single_count, dense
        return RowPlan(n_q, n_k, block_q, block_k, *lists, key_start, window, softcap, sinks)

    @staticmethod
    def concat(plans: Sequence[RowPlan]) -> RowPlan:
        """Join the plans of consecutive segments (ranges of queries) of one chunk along the query axis.

        The plan of queries [s, e) of the chunk has ``n_q`` = e - s, and its ``n_k`` is one past the key position
        of query e - 1, so its queries keep their key positions. The next segment must start at key ``n_k``, and
        every segment but the last must hold a multiple of ``block_q`` queries. Capacities may differ. The result
        has the sum of the ``n_q`` and the last segment's ``n_k``. Raises PlanError when a segment does not
        continue the one before.
        """
        check_consecutive(plans)
        last = plans[-1]
        block_capacity = max(plan.blocks.shape[-1] for plan in plans)
        column_capacity = max(plan.columns.shape[-1] for plan in plans)
        return dataclasses.replace(
            last,
            n_q=sum(plan.n_q for plan in plans),
            blocks=torch.cat([_pad_to(plan.blocks, block_capacity) for plan in plans], 2),
            block_count=torch.cat([plan.block_count for plan in plans], 2),
            columns=torch.cat([_pad_to(plan.columns, column_capacity) for plan in plans], 2),
            column_count=torch.cat([plan.column_count for plan in plans], 2),
            dense_rows=torch.cat([plan.dense_rows for plan in plans], 2),
        )


def _pad_to(lists: torch.Tensor, capacity: int) -> torch.Tensor:
    return torch.nn.functional.pad(lists, (0, capacity - lists.shape[-1]))


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
