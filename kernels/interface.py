"""The kernel contract: a row plan says which keys each query block reads; one call computes the attention.

Two backends (Triton, torch) and an oracle share it (paper, section 3.4, step 6). For query position p the
attention runs over the keys that the plan lists for p's query block, restricted to

    max(key_start[b], p - window + 1) <= key <= p

so causality holds inside the kernel whatever the plan says. Positions are bottom-right aligned: query row r
sits at key position n_k - n_q + r, which is what chunked prefill needs.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Literal

import torch

Backend = Literal["auto", "triton", "torch"]


class PlanError(ValueError):
    """A row plan that breaks its contract (for instance a column inside one of the row's blocks)."""


@dataclass(frozen=True, eq=False)
class RowPlan:
    """For every (batch, query head, query block): the sorted KV blocks and the single KV columns it reads.

    Shapes: B batch, H query heads, M = ceil(n_q / block_q) query blocks.
    Row r of query block i sits at key position n_k - n_q + i * block_q + r (bottom-right alignment).

    A sparse row must list its diagonal: every KV block that its query positions meet (two or three of them
    at 128 x 64). Lists end at the row's last query position. Construction checks shapes, dtypes and devices;
    ``validate`` reads the values. Raises PlanError in both.
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

    def __post_init__(self) -> None:
        from routesparse.kernels.plan_checks import check_static

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
        """Where the lists lie."""
        return self.block_count.device

    def query_positions(self) -> tuple[torch.Tensor, torch.Tensor]:
        """First and last key position of each query block's rows, two int64 [M]; no host sync."""
        first = torch.arange(self.query_blocks, device=self.device) * self.block_q + self.key_offset
        return first, (first + (self.block_q - 1)).clamp(max=self.n_k - 1)

    def validate(self) -> RowPlan:
        """Read every value and return the plan itself, or raise PlanError naming batch, head and query block.

        Checks the sparse rows: counts within capacity, lists strictly ascending and within the row's causal
        range, columns outside the row's blocks, every diagonal block listed (unless ``key_start`` hides it).
        Synchronises with the device; meant for tests, imports and new builders.
        """
        from routesparse.kernels.plan_checks import check_values

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
        """The plan of some query heads, in the given order; the caller selects q, k and v to match."""
        index = torch.as_tensor(heads, device=self.device)
        names = ("blocks", "block_count", "columns", "column_count", "dense_rows")
        tensors: dict[str, Any] = {name: getattr(self, name).index_select(1, index) for name in names}
        sinks = None if self.sinks is None else self.sinks.index_select(0, index)
        return dataclasses.replace(self, sinks=sinks, **tensors)

    def to_mask(self) -> torch.Tensor:
        """Exactly the keys that are read, bool [B, H, n_q, n_k]. Slow; for oracles and drawings."""
        from routesparse.kernels.plan_area import mask_of

        return mask_of(self)

    @property
    def density(self) -> float:
        """Kept share of the causal area, over all batches and heads (see ``head_density``). Synchronises."""
        from routesparse.kernels.plan_area import areas_of

        kept, dense = areas_of(self)
        return float(kept.sum() / dense.sum().clamp(min=1))

    def head_density(self) -> torch.Tensor:
        """Kept share of the causal area per head, float64 [B, H]; 1.0 is the dense plan. No host sync.

        The causal area holds the (query, key) pairs that a dense plan with the same ``key_start`` and
        ``window`` reads; partial blocks on the diagonal count by their exact area.
        """
        from routesparse.kernels.plan_area import areas_of

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
        """Lower a block mask and a column list to sorted lists, on the device and without a host sync.

        Args:
            block_mask: bool [B, H, M, ceil(n_k / block_k)]. The diagonal blocks are added; blocks past the
                diagonal, wholly before ``key_start`` or wholly outside the window are dropped.
            columns: int [B, H, V], single keys for every row of the head, in any order. A column that lies
                in one of the row's blocks, past its last query position, before ``key_start``, outside the
                window or twice in the list is dropped for that row.
            column_count: int [B, H], how many of the V columns count; all of them when None.
            dense_rows: bool [B, H, M]; those rows get empty lists.
            block_capacity, column_capacity: static list lengths (default: all blocks, V columns). A row that
                needs more becomes dense.

        Raises PlanError on wrong shapes or dtypes.
        """
        from routesparse.kernels.lowering import lower

        blocks, block_count, single, single_count, dense = lower(
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
        return RowPlan(
            n_q,
            n_k,
            block_q,
            block_k,
            blocks,
            block_count,
            single,
            single_count,
            dense,
            key_start,
            window,
            softcap,
            sinks,
        )

    @staticmethod
    def concat(plans: Sequence[RowPlan]) -> RowPlan:
        """Join the plans of consecutive row ranges (segments) of one chunk along the query axis.

        A segment plan covers rows [s, e) of the chunk and sees keys up to its own last row: its ``n_q`` is
        e - s and its ``n_k`` is the key position one past row e - 1, so its rows stand where they stand in
        the chunk. The next segment must start at that key, and every segment but the last must hold a
        multiple of ``block_q`` rows. Capacities may differ. The result has the sum of the ``n_q`` and the
        last segment's ``n_k``. Raises PlanError when the plans do not follow on from each other.
        """
        from routesparse.kernels.plan_checks import check_consecutive

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


def sparse_attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    plan: RowPlan,
    scale: float | None = None,
    backend: Backend = "auto",
) -> tuple[torch.Tensor, torch.Tensor]:
    """Attention over the keys of the plan.

    Args:
        q: [B, Hq, n_q, D]; any strides.
        k, v: [B, Hkv, n_k, D], Hq a multiple of Hkv (grouped-query heads are native); any strides.
        plan: for Hq heads, on the tensors' device (the torch backend also takes a plan that lies elsewhere).
        scale: positive factor on the logits, D ** -0.5 when None.
        backend: "auto" is Triton on CUDA and torch elsewhere.

    Returns:
        out [B, Hq, n_q, D] in q's dtype, and lse [B, Hq, n_q] float32: natural log of the summed
        exponentials of the final logits (scale, soft cap and sink included). A row without keys gives
        0 and -inf, or 0 and the sink. Forward only: neither carries a gradient.

    A plan that ``validate`` refuses gives unspecified values, yet none that depend on a later key. Keys and
    values must be finite: a NaN in a masked place of a tile reaches the tile's rows, as in any fused kernel.

    Raises ValueError for shapes, dtypes, devices or a backend that do not fit together.
    """
    _check_inputs(q, k, v, plan)
    scale = q.shape[-1] ** -0.5 if scale is None else float(scale)
    if backend == "auto":
        backend = "triton" if q.is_cuda else "torch"
    if backend == "torch":
        from routesparse.kernels.torch_backend import attend

        return attend(q, k, v, plan, scale)
    if backend == "triton":
        from routesparse.kernels.triton_backend import attend as attend_triton

        return attend_triton(q, k, v, plan, scale)
    raise ValueError(f'backend {backend!r} is unknown; pass "auto", "triton" or "torch"')


def _check_inputs(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan) -> None:
    if q.ndim != 4 or k.ndim != 4 or k.shape != v.shape:
        raise ValueError(
            f"q is {list(q.shape)}, k {list(k.shape)}, v {list(v.shape)}; "
            "pass q [B, Hq, n_q, D] and k, v of one shape [B, Hkv, n_k, D]"
        )
    batch, heads, n_q, head_size = q.shape
    if k.shape[0] != batch or k.shape[3] != head_size or heads % k.shape[1]:
        raise ValueError(
            f"q {list(q.shape)} and k {list(k.shape)} do not fit: batch and head size must be equal and "
            "the query heads a multiple of the KV heads"
        )
    if (plan.batch, plan.heads, plan.n_q, plan.n_k) != (batch, heads, n_q, k.shape[2]):
        raise ValueError(
            f"the plan is for B, H, n_q, n_k = {plan.batch}, {plan.heads}, {plan.n_q}, {plan.n_k}; "
            f"the tensors have {batch}, {heads}, {n_q}, {k.shape[2]}"
        )
    if not q.dtype == k.dtype == v.dtype or not q.is_floating_point():
        raise ValueError(f"q, k, v have dtypes {q.dtype}, {k.dtype}, {v.dtype}; pass one floating dtype")
    if not q.device == k.device == v.device:
        raise ValueError(f"q, k, v lie on {q.device}, {k.device}, {v.device}; move them to one device")
