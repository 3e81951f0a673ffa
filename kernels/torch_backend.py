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
    """Consecutive query blocks [begin, end) of one head; ``attend`` computes them."""

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
        batch, head, self.begin, self.end = unit
        self.q = q.contiguous()
        self.packed = packed
        self.plan = plan
        self.scale = scale
        self.scratch = scratch
        self.head_size = q.shape[1]
        self.blocks = lists.blocks[batch, head]
        self.block_count = lists.block_count[batch, head]
        self.columns = lists.columns[batch, head]
        self.column_count = lists.column_count[batch, head]
        self.dense_rows = lists.dense_rows[batch, head]
        self.key_start = int(lists.key_start[batch])
        self.sink = float(lists.sinks[head])
        # Key position of the span's first row.
        self.origin = plan.key_offset + self.begin * plan.block_q
        dtype = torch.float64 if q.dtype == torch.float64 else torch.float32
        self.diagonal = torch.zeros(q.shape, dtype=dtype, device=q.device)
        self.diagonal_lse = torch.full(q.shape[:1], -torch.inf, dtype=dtype, device=q.device)
        self.prefix = torch.zeros_like(self.diagonal)
        self.prefix_lse = torch.full_like(self.diagonal_lse, -torch.inf)

    def attend(self) -> tuple[torch.Tensor, torch.Tensor]:
        """out [rows, D] and lse [rows] of the span."""
        fused = self._fused_legal()
        plain = []
        block = self.begin
        while block < self.end:
            if fused and self.dense_rows[block] and self._first(block) >= self.key_start:
                block = self._dense_run(block)
                continue
            if fused and self._is_plain(block):
                plain.append(block)
                self._plain_prefix(block)
            else:
                self._masked_row(block)
            block += 1
        self._triangles(plain)
        return self._merge()

    def _fused_legal(self) -> bool:
        plan = self.plan
        on_cpu = self.q.device.type == "cpu" and _fused_attention is not None
        return on_cpu and plan.window is None and plan.softcap is None

    def _first(self, block: int) -> int:
        return self.plan.key_offset + block * self.plan.block_q

    def _last(self, block: int) -> int:
        return min(self._first(block) + self.plan.block_q, self.plan.n_k) - 1

    def _listed(self, block: int) -> tuple[np.ndarray, np.ndarray]:
        """The row's KV blocks and columns."""
        return (
            self.blocks[block, : self.block_count[block]],
            self.columns[block, : self.column_count[block]],
        )

    def _is_plain(self, block: int) -> bool:
        """Whether the row's triangle is listed in full and free of padding."""
        first, last = self._first(block), self._last(block)
        blocks, columns = self._listed(block)
        own = (blocks >= first // self.plan.block_k) & (blocks <= last // self.plan.block_k)
        complete = int(own.sum()) == last // self.plan.block_k - first // self.plan.block_k + 1
        return complete and first >= self.key_start and not (columns >= first).any()

    def _dense_run(self, block: int) -> int:
        """Consecutive dense rows in one call per part; returns the query block after them."""
        end = block + 1
        while end < self.end and self.dense_rows[end]:
            end += 1
        first, last = self._first(block), self._last(end - 1)
        rows = slice(first - self.origin, last + 1 - self.origin)
        self._write_diagonal(rows, *self._fused(self.q[rows], self.packed[first : last + 1], causal=True))
        if first > self.key_start:
            self._write_prefix(rows, *self._fused(self.q[rows], self.packed[self.key_start : first]))
        return end

    def _plain_prefix(self, block: int) -> None:
        """Gather the listed keys before the row's first position and attend to them without a mask."""
        size, first = self.plan.block_k, self._first(block)
        blocks, columns = self._listed(block)
        # A block that padding or the row's own first position cuts is read key by key.
        whole = blocks[(blocks < first // size) & (blocks * size >= self.key_start)]
        cut = blocks[(blocks * size < self.key_start) & ((blocks + 1) * size > self.key_start)]
        singles = [columns[columns >= self.key_start]]
        singles += [np.arange(self.key_start, (at + 1) * size) for at in cut if at < first // size]
        singles += [np.arange(max(first // size * size, self.key_start), first)]
        keys = self._gather(whole, np.concatenate(singles))
        if len(keys):
            rows = slice(first - self.origin, self._last(block) + 1 - self.origin)
            self._write_prefix(rows, *self._fused(self.q[rows], keys))

    def _gather(self, whole: np.ndarray, singles: np.ndarray) -> torch.Tensor:
        """Packed keys and values of KV blocks and single keys, [count, 2 D], in the thread's scratch."""
        size = self.plan.block_k
        if len(whole) and not len(singles) and whole[-1] - whole[0] == len(whole) - 1:
            return self.packed[int(whole[0]) * size : (int(whole[-1]) + 1) * size]
        in_blocks = len(whole) * size
        if not hasattr(self.scratch, "keys") or len(self.scratch.keys) < in_blocks + len(singles):
            self.scratch.keys = self.packed.new_empty(
                (in_blocks + len(singles) + size) * 2, self.packed.shape[1]
            )
        keys = self.scratch.keys[: in_blocks + len(singles)]
        if len(whole):
            source = self.packed.view(-1, size * self.packed.shape[1])
            target = keys[:in_blocks].view(len(whole), -1)
            torch.index_select(source, 0, self._index(whole), out=target)
        if len(singles):
            torch.index_select(self.packed, 0, self._index(singles), out=keys[in_blocks:])
        return keys

    def _index(self, values: np.ndarray) -> torch.Tensor:
        return torch.from_numpy(values.astype(np.int64)).to(self.packed.device)

    def _triangles(self, plain: list[int]) -> None:
        """The diagonal part of plain rows: runs of whole query blocks share one batched causal call."""
        while plain:
            run = 1
            while run < len(plain) and plain[run] == plain[0] + run:
                run += 1
            first, last = self._first(plain[0]), self._last(plain[run - 1])
            if (last + 1 - first) % self.plan.block_q and run > 1:
                run -= 1
                last = self._last(plain[run - 1])
            rows = slice(first - self.origin, last + 1 - self.origin)
            keys = self.packed[first : last + 1].view(run, -1, self.packed.shape[1])
            out, lse = self._fused(self.q[rows].view(run, -1, self.head_size), keys, causal=True)
            self._write_diagonal(rows, out, lse)
            plain = plain[run:]

    def _fused(
        self, q: torch.Tensor, keys: torch.Tensor, causal: bool = False
    ) -> tuple[torch.Tensor, torch.Tensor]:
        """torch's fused CPU attention, q [.., rows, D] over packed keys [.., count, 2 D]; out and lse."""
        leading = (1, 1) if q.ndim == 2 else (q.shape[0], 1)
        q = q.reshape(*leading, *q.shape[-2:])
        keys = keys.reshape(*leading, *keys.shape[-2:])
        key, value = keys[..., : self.head_size], keys[..., self.head_size :]
        assert _fused_attention is not None
        return _fused_attention(q, key, value, 0.0, causal, scale=self.scale)

    def _masked_row(self, block: int) -> None:
        """Any row, by comparing positions; softmax in float32 (float64 for float64 inputs)."""
        plan = self.plan
        first, last = self._first(block), self._last(block)
        lowest = self.key_start if plan.window is None else max(self.key_start, first - plan.window + 1)
        if self.dense_rows[block]:
            position = np.arange(lowest, last + 1)
            keys = self.packed[lowest : last + 1]
        else:
            blocks, columns = self._listed(block)
            in_blocks = blocks[:, None] * plan.block_k + np.arange(plan.block_k)
            position = np.concatenate([in_blocks.ravel(), columns])
            position = position[(position >= lowest) & (position <= last)]
            keys = self.packed.index_select(0, self._index(position))
        if not len(position):
            return
        rows = slice(first - self.origin, last + 1 - self.origin)
        key, value = keys.to(self.diagonal.dtype).split(self.head_size, -1)
        logits = self.q[rows].to(key.dtype) @ key.mT * self.scale
        if plan.softcap is not None:
            logits = plan.softcap * torch.tanh(logits / plan.softcap)
        where, query = self._index(position), self._index(np.arange(first, last + 1))[:, None]
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
