"""The contract on plain torch: the CPU's backend, and a slow but correct one on any other device.

Every query block splits into two parts, merged at the end by their log-sum-exps (online softmax):

    diagonal  keys [first, last] of its own positions: a causal triangle, the same for every row
    prefix    the listed keys before ``first``: no mask at all, so torch's fused CPU attention can run on them

Whatever does not fit this (soft cap, window, padding inside the triangle, an unlisted diagonal, a device or
a torch without the fused operator) takes ``_masked_row``, which compares positions.

Threads: a unit of work is a span of query blocks of one head. On the CPU the spans run on as many Python
threads as torch has, each with one thread of its own: many small operators that each fork and join lose a
third of their time, and far more when another process wants a core.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass

import numpy as np
import torch
from routesparse.kernels.interface import RowPlan

# Query rows per unit of work: large enough for the fused operator's best tiles, small enough to balance.
_SPAN_ROWS = 2048
_fused_attention = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


@torch.no_grad()
def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, n_q, D] in q's dtype and lse [B, Hq, n_q] float32; see ``sparse_attention``.

    Forward only: the result carries no gradient.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    lists = _HostLists.of(plan)
    group = q.shape[1] // k.shape[1]
    packed = [[_pack(k[b, h], v[b, h], plan.block_k) for h in range(k.shape[1])] for b in range(q.shape[0])]
    scratch = threading.local()

    def run(unit: tuple[int, int, int, int]) -> None:
        batch, head, begin, end = unit
        rows = slice(begin * plan.block_q, min(end * plan.block_q, plan.n_q))
        span = _Span(q[batch, head, rows], packed[batch][head // group], plan, lists, unit, scale, scratch)
        out[batch, head, rows], lse[batch, head, rows] = span.attend()

    _run_units(run, _units(plan, lists), threads=torch.get_num_threads() if q.device.type == "cpu" else 1)
    return out, lse


def _pack(k: torch.Tensor, v: torch.Tensor, block_k: int) -> torch.Tensor:
    """One KV head as [n_k rounded up to blocks, 2 D]: a single gather then fetches keys and values."""
    packed = torch.cat([k, v], -1)
    return torch.nn.functional.pad(packed, (0, 0, 0, -k.shape[0] % block_k))


@dataclass(frozen=True)
class _HostLists:
    """The plan's lists as numpy arrays, shapes as in RowPlan."""

    blocks: np.ndarray
    block_count: np.ndarray
    columns: np.ndarray
    column_count: np.ndarray
    dense_rows: np.ndarray
    key_start: np.ndarray
    sinks: np.ndarray

    @staticmethod
    def of(plan: RowPlan) -> _HostLists:
        """Fetch the lists; no padding is ``key_start`` 0, no sink is -inf."""
        key_start = torch.zeros(plan.batch) if plan.key_start is None else plan.key_start
        sinks = torch.full((plan.heads,), -torch.inf) if plan.sinks is None else plan.sinks
        tensors = (
            plan.blocks,
            plan.block_count,
            plan.columns,
            plan.column_count,
            plan.dense_rows,
            key_start.int(),
            sinks.detach().double(),
        )
        return _HostLists(*(tensor.cpu().numpy() for tensor in tensors))


def _units(plan: RowPlan, lists: _HostLists) -> list[tuple[int, int, int, int]]:
    """(batch, head, first query block, end), the most work first so that threads finish together."""
    size = max(1, _SPAN_ROWS // plan.block_q)
    reach = (np.arange(1, plan.query_blocks + 1) * plan.block_q + plan.key_offset)[None, None]
    keys = np.where(lists.dense_rows, reach, lists.block_count * plan.block_k + lists.column_count)
    units = [
        (batch, head, begin, min(begin + size, plan.query_blocks))
        for batch in range(plan.batch)
        for head in range(plan.heads)
        for begin in range(0, plan.query_blocks, size)
    ]
    return sorted(units, key=lambda unit: -int(keys[unit[0], unit[1], unit[2] : unit[3]].sum()))


def _run_units(
    run: Callable[[tuple[int, int, int, int]], None],
    units: Iterable[tuple[int, int, int, int]],
    threads: int,
) -> None:
    """Run every unit, on ``threads`` Python threads of one torch thread each."""

    def quietly(unit: tuple[int, int, int, int]) -> None:
        # Gradient mode belongs to a thread.
        with torch.no_grad():
            run(unit)

    if threads == 1:
        for unit in units:
            quietly(unit)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(quietly, units):
                pass
    finally:
        # The workers' setting is theirs, but threads started later inherit the last one made.
        torch.set_num_threads(threads)


class _Span:
    """Consecutive query blocks [begin, end) of one head; ``attend`` computes them.

    Everything about the lists that numpy can decide for all R rows of the span at once is decided in
    ``__init__``: what remains per row is a gather and an attention call.
    """

    def __init__(
        self,
        q: torch.Tensor,
        packed: torch.Tensor,
        plan: RowPlan,
        lists: _HostLists,
        unit: tuple[int, int, int, int],
        scale: float,
        scratch: threading.local,
    ) -> None:
        """q [rows, D] of the span; packed [keys, 2 D] of its KV head."""
        batch, head, begin, end = unit
        size = plan.block_k
        self.q = q.contiguous()
        self.packed = packed
        self.plan = plan
        self.scale = scale
        self.scratch = scratch
        self.head_size = q.shape[1]
        self.key_start = int(lists.key_start[batch])
        self.sink = float(lists.sinks[head])
        self.dense = lists.dense_rows[batch, head, begin:end]
        # Key positions of each row's first and last query.
        self.first = np.arange(begin, end) * plan.block_q + plan.key_offset
        self.last = np.minimum(self.first + plan.block_q, plan.n_k) - 1

        self.blocks = lists.blocks[batch, head, begin:end].astype(np.int64)
        self.columns = lists.columns[batch, head, begin:end].astype(np.int64)
        self.block_live = np.arange(self.blocks.shape[1]) < lists.block_count[batch, head, begin:end, None]
        self.column_live = np.arange(self.columns.shape[1]) < lists.column_count[batch, head, begin:end, None]
        own_first, own_last = self.first // size, self.last // size
        below = self.block_live & (self.blocks < own_first[:, None])
        own = self.block_live & (self.blocks >= own_first[:, None]) & (self.blocks <= own_last[:, None])
        early = self.column_live & (self.columns < self.first[:, None])
        # In an ascending list the blocks (columns) of the prefix are the slots [from, to).
        self.block_from = (below & (self.blocks * size < self.key_start)).sum(1)
        self.block_to = below.sum(1)
        self.column_from = (early & (self.columns < self.key_start)).sum(1)
        self.column_to = early.sum(1)
        # The block that padding cuts is listed: its real keys are read one by one.
        self.cut = (below & (self.blocks == self.key_start // size)).any(1) & bool(self.key_start % size)
        self.plain = (
            ~self.dense
            & _ascending(self.blocks, self.block_live)
            & _ascending(self.columns, self.column_live)
            & (own.sum(1) == own_last - own_first + 1)
            & (self.column_to == self.column_live.sum(1))
        )
        self.block_index = torch.from_numpy(self.blocks)
        self.column_index = torch.from_numpy(self.columns)

        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.diagonal = torch.zeros(q.shape, dtype=dtype, device=q.device)
        self.diagonal_lse = torch.full(q.shape[:1], -torch.inf, dtype=dtype, device=q.device)
        self.prefix = torch.zeros_like(self.diagonal)
        self.prefix_lse = torch.full_like(self.diagonal_lse, -torch.inf)

    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """out [rows, D] and lse [rows] of the span."""
        fused = self._fused_legal() & (self.first >= self.key_start)
        for begin, end in _runs(fused & self.dense):
            self._dense_run(begin, end)
        plain = fused & self.plain
        for begin, end in _runs(plain):
            self._triangles(begin, end)
        for row in np.flatnonzero(plain).tolist():
            self._prefix(row)
        for row in np.flatnonzero(~plain & ~(fused & self.dense)).tolist():
            self._masked_row(row)
        return self._merge()

    def _fused_legal(self) -> bool:
        on_cpu = self.q.device.type == "cpu" and _fused_attention is not None
        return on_cpu and self.plan.window is None and self.plan.softcap is None

    def _rows(self, begin: int, end: int) -> slice:
        """Where query blocks [begin, end) of the span lie in q [rows, D]."""
        return slice(begin * self.plan.block_q, min(end * self.plan.block_q, self.q.shape[0]))

    def _dense_run(self, begin: int, end: int) -> None:
        """Consecutive dense rows: one call per part."""
        first, last, rows = int(self.first[begin]), int(self.last[end - 1]), self._rows(begin, end)
        self._write_diagonal(rows, *self._fused(self.q[rows], self.packed[first : last + 1], causal=True))
        if first > self.key_start:
            self._write_prefix(rows, *self._fused(self.q[rows], self.packed[self.key_start : first]))

    def _triangles(self, begin: int, end: int) -> None:
        """The diagonal part of consecutive plain rows: one batched causal call for the full ones."""
        whole = end if self.last[end - 1] - self.first[end - 1] + 1 == self.plan.block_q else end - 1
        for low, high in ((begin, whole), (whole, end)):
            if low < high:
                rows = self._rows(low, high)
                q = self.q[rows].view(high - low, -1, self.head_size)
                keys = self.packed[int(self.first[low]) : int(self.last[high - 1]) + 1]
                keys = keys.view(high - low, -1, keys.shape[1])
                self._write_diagonal(rows, *self._fused(q, keys, causal=True))

    def _prefix(self, row: int) -> None:
        """Fetch the listed keys before the row's first position and attend to them without a mask."""
        size, first = self.plan.block_k, int(self.first[row])
        block_from, block_to = int(self.block_from[row]), int(self.block_to[row])
        column_from, column_to = int(self.column_from[row]), int(self.column_to[row])
        in_blocks = (block_to - block_from) * size
        # Blocks cut by padding, or by the row's own first position, are read as ranges.
        ranges = []
        if self.cut[row]:
            ranges.append((self.key_start, self.key_start // size * size + size))
        if first % size:
            ranges.append((max(first // size * size, self.key_start), first))
        count = in_blocks + column_to - column_from + sum(end - begin for begin, end in ranges)
        if not count:
            return
        if count == in_blocks and (start := self._consecutive(row, block_from, block_to)) is not None:
            keys = self.packed[start * size : start * size + count]
        else:
            keys = self._scratch(count)
            if in_blocks:
                source = self.packed.view(-1, size * self.packed.shape[1])
                index = self.block_index[row, block_from:block_to]
                torch.index_select(source, 0, index, out=keys[:in_blocks].view(-1, source.shape[1]))
            place = in_blocks
            if column_to > column_from:
                place += column_to - column_from
                index = self.column_index[row, column_from:column_to]
                torch.index_select(self.packed, 0, index, out=keys[in_blocks:place])
            for begin, end in ranges:
                keys[place : place + end - begin] = self.packed[begin:end]
                place += end - begin
        rows = self._rows(row, row + 1)
        self._write_prefix(rows, *self._fused(self.q[rows], keys))

    def _consecutive(self, row: int, begin: int, end: int) -> int | None:
        """The first of the row's listed blocks [begin, end) when they follow on from each other, or None."""
        first, last = int(self.blocks[row, begin]), int(self.blocks[row, end - 1])
        return first if last - first == end - begin - 1 else None

    def _scratch(self, count: int) -> torch.Tensor:
        """[count, 2 D] of the thread's own memory, overwritten by its next call."""
        if not hasattr(self.scratch, "keys") or len(self.scratch.keys) < count:
            self.scratch.keys = self.packed.new_empty(2 * count, self.packed.shape[1])
        return self.scratch.keys[:count]

    def _fused(
        self, q: torch.Tensor, keys: torch.Tensor, causal: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """torch's fused CPU attention, q [.., rows, D] over packed keys [.., count, 2 D]; out and lse."""
        if q.ndim == 2:
            q, keys = q[None], keys[None]
        key, value = keys[:, None].split(self.head_size, -1)
        assert _fused_attention is not None
        return _fused_attention(q[:, None], key, value, 0.0, causal, scale=self.scale)

    def _masked_row(self, row: int) -> None:
        """Any row, by comparing positions; softmax in float32 (float64 for float64 inputs)."""
        plan, device = self.plan, self.packed.device
        first, last = int(self.first[row]), int(self.last[row])
        lowest = self.key_start if plan.window is None else max(self.key_start, first - plan.window + 1)
        if lowest > last:
            return
        if self.dense[row]:
            where = torch.arange(lowest, last + 1, device=device)
            keys = self.packed[lowest : last + 1]
        else:
            listed = self.blocks[row, self.block_live[row], None] * plan.block_k + np.arange(plan.block_k)
            position = np.concatenate([listed.ravel(), self.columns[row, self.column_live[row]]])
            position = position[(position >= lowest) & (position <= last)]
            where = torch.from_numpy(position).to(device)
            keys = self.packed.index_select(0, where)
        if not len(where):
            return
        rows = self._rows(row, row + 1)
        key, value = keys.to(self.diagonal.dtype).split(self.head_size, -1)
        logits = self.q[rows].to(key.dtype) @ key.mT * self.scale
        if plan.softcap is not None:
            logits = plan.softcap * torch.tanh(logits / plan.softcap)
        query = torch.arange(first, last + 1, device=device)[:, None]
        hidden = where > query
        if plan.window is not None:
            hidden |= where <= query - plan.window
        logits.masked_fill_(hidden, -torch.inf)
        lse = logits.logsumexp(-1)
        weights = torch.exp(logits - lse.masked_fill(lse == -torch.inf, 0.0)[:, None])
        self._write_diagonal(rows, weights @ value, lse)

    def _write_diagonal(self, rows: slice, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.diagonal[rows] = out.reshape(-1, self.head_size)
        self.diagonal_lse[rows] = lse.reshape(-1)

    def _write_prefix(self, rows: slice, out: torch.Tensor, lse: torch.Tensor) -> None:
        self.prefix[rows] = out.reshape(-1, self.head_size)
        self.prefix_lse[rows] = lse.reshape(-1)

    def _merge(self) -> tuple[torch.Tensor, torch.Tensor]:
        """Weigh the two parts, and the sink with value zero, by their shares of the denominator."""
        lse = torch.logaddexp(self.diagonal_lse, self.prefix_lse)
        if self.sink > -np.inf:
            lse = torch.logaddexp(lse, torch.full_like(lse, self.sink))
        # A row without keys has no share to divide by.
        finite = lse.masked_fill(lse == -torch.inf, 0.0)
        out = self.diagonal * torch.exp(self.diagonal_lse - finite)[:, None]
        out += self.prefix * torch.exp(self.prefix_lse - finite)[:, None]
        return out.to(self.q.dtype), lse


def _ascending(lists: np.ndarray, live: np.ndarray) -> np.ndarray:
    """Which rows of [R, capacity] strictly ascend over their live slots, bool [R]."""
    return ((lists[:, 1:] > lists[:, :-1]) | ~live[:, 1:]).all(1)


def _runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """The maximal ranges [begin, end) of true entries."""
    edges = np.flatnonzero(np.diff(rows.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
