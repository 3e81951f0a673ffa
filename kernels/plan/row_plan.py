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
from typing import Any

import torch

from routesparse.kernels.plan.checks import check_consecutive, check_static, check_values
from routesparse.kernels.plan.lowering import lower


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
        place, capacities = (n_q, n_k, block_q, block_k), (block_capacity, column_capacity)
        lists = lower(block_mask, place, columns, column_count, dense_rows, capacities, key_start, window)
        return RowPlan(*place, *lists, key_start, window, softcap, sinks)

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
