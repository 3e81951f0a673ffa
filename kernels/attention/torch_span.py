"""A span: consecutive query blocks of one head in plain torch.

The keys of a query block (a *row* of the plan) split into two parts, computed by torch's fused CPU attention and
merged at the end by their log-sum-exps (online softmax):

    diagonal  the block's own positions [first, last]: a causal triangle, the same for every row
    prefix    the listed keys before ``first``: every query of the row reads all of them, so no mask is needed

A *plain* row is a sparse one that splits like this. ``_masked_row`` computes all others, by comparing positions: those
with a soft cap, a window, padding inside the triangle, an unlisted diagonal or lists that do not ascend, and every row
on a device or a torch without the fused operator. So a wrong list can be slow or incomplete, but no query ever reads a
key after itself.
"""

from __future__ import annotations

import threading
from dataclasses import dataclass

import numpy as np
import torch

from routesparse.kernels.plan import RowPlan

# batch, head, first query block, end of the query blocks
SpanRange = tuple[int, int, int, int]
# queries of the span, out [.., D], lse [..]
Part = tuple[slice, torch.Tensor, torch.Tensor]

# Keys gathered by one call: few enough to stay in a core's own cache until they are read.
_GATHER_KEYS = 4096
_fused_attention = getattr(torch.ops.aten, "_scaled_dot_product_flash_attention_for_cpu", None)


@dataclass(frozen=True)
class HostLists:
    """The plan's lists as numpy arrays, shapes as in RowPlan; no padding is a key_start of 0, no sinks are -inf."""

    blocks: np.ndarray
    block_count: np.ndarray
    columns: np.ndarray
    column_count: np.ndarray
    dense_rows: np.ndarray
    key_start: np.ndarray
    sinks: np.ndarray

    @staticmethod
    def of(plan: RowPlan) -> HostLists:
        """Fetch the lists from the plan's device."""
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
        return HostLists(*(tensor.cpu().numpy() for tensor in tensors))


class Span:
    """Query blocks [begin, end) of one head, R rows of the plan; ``attend`` computes them.

    ``__init__`` derives everything about the lists for the R rows at once; each row then costs a gather and an
    attention call.
    """

    def __init__(
        self,
        q: torch.Tensor,
        packed: torch.Tensor,
        plan: RowPlan,
        lists: HostLists,
        span_range: SpanRange,
        scale: float,
        scratch: threading.local,
    ) -> None:
        """q [queries, D] of the span; packed [keys, 2 D] of its KV head; scratch is the thread's own."""
        batch, head, begin, end = span_range
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

        rows = (batch, head, slice(begin, end))
        self.blocks, self.block_live = _live(lists.blocks[rows], lists.block_count[rows])
        self.columns, self.column_live = _live(lists.columns[rows], lists.column_count[rows])
        own_first, own_last = self.first // size, self.last // size
        below = self.block_live & (self.blocks < own_first[:, None])
        own = self.block_live & (self.blocks >= own_first[:, None]) & (self.blocks <= own_last[:, None])
        early = self.column_live & (self.columns < self.first[:, None])
        # The entries [from, to) of an ascending list are the prefix's blocks (columns).
        self.block_from = (below & (self.blocks * size < self.key_start)).sum(1)
        self.block_to = below.sum(1)
        self.column_from = (early & (self.columns < self.key_start)).sum(1)
        self.column_to = early.sum(1)
        # Rows that list the block that padding cuts: its real keys are read one by one.
        self.cut = (below & (self.blocks == self.key_start // size)).any(1) & bool(self.key_start % size)
        self.plain = (
            ~self.dense
            & _ascending(self.blocks, self.block_live)
            & _ascending(self.columns, self.column_live)
            & (own.sum(1) == own_last - own_first + 1)
            & (self.column_to == self.column_live.sum(1))
        )
        self.diagonals: list[Part] = []
        self.prefixes: list[Part] = []

    def attend(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Write out [queries, D] and lse [queries] of the span."""
        fused = self._fused_legal() & (self.first >= self.key_start)
        for begin, end in _runs(fused & self.dense):
            self._dense_run(begin, end)
        plain = fused & self.plain
        for begin, end in _runs(plain):
            self._triangles(begin, end)
        if plain.any():
            self._plain_prefixes(np.flatnonzero(plain).tolist())
        for row in np.flatnonzero(~plain & ~(fused & self.dense)).tolist():
            self._masked_row(row)
        self._merge(out, lse)

    def _fused_legal(self) -> bool:
        on_cpu = self.q.device.type == "cpu" and _fused_attention is not None
        return on_cpu and self.plan.window is None and self.plan.softcap is None

    def _rows(self, begin: int, end: int) -> slice:
        """Where query blocks [begin, end) of the span lie in q [queries, D]."""
        return slice(begin * self.plan.block_q, min(end * self.plan.block_q, self.q.shape[0]))

    def _fused(self, q: torch.Tensor, keys: torch.Tensor, causal: bool) -> tuple[torch.Tensor, torch.Tensor]:
        """out and lse of torch's fused CPU attention: q [X, queries, D] over packed keys [X, count, 2 D]."""
        assert _fused_attention is not None
        key, value = keys[:, None].split(self.head_size, -1)
        return _fused_attention(q[:, None], key, value, 0.0, causal, scale=self.scale)

    def _dense_run(self, begin: int, end: int) -> None:
        """Compute consecutive dense rows by one call per part."""
        first, last, rows = int(self.first[begin]), int(self.last[end - 1]), self._rows(begin, end)
        q = self.q[None, rows]
        self.diagonals.append((rows, *self._fused(q, self.packed[None, first : last + 1], True)))
        if first > self.key_start:
            self.prefixes.append((rows, *self._fused(q, self.packed[None, self.key_start : first], False)))

    def _triangles(self, begin: int, end: int) -> None:
        """Compute the diagonal part of consecutive plain rows: one call for the full ones, one for a shorter last."""
        whole = end if self.last[end - 1] - self.first[end - 1] + 1 == self.plan.block_q else end - 1
        for low, high in ((begin, whole), (whole, end)):
            if low < high:
                rows = self._rows(low, high)
                q = self.q[rows].view(high - low, -1, self.head_size)
                keys = self.packed[int(self.first[low]) : int(self.last[high - 1]) + 1]
                self.diagonals.append((rows, *self._fused(q, keys.view(high - low, -1, keys.shape[1]), True)))

    def _plain_prefixes(self, plain: list[int]) -> None:
        """Attend without a mask to the listed keys before each plain row's first position.

        One call gathers the keys of several rows, as whole blocks when no row reads a single key: the fewer calls
        per row, the less the threads wait for each other.
        """
        assert _fused_attention is not None
        size = self.plan.block_k
        singles = {row: keys for row in plain if len(keys := self._single_keys(row))}
        unit = 1 if singles else size
        source = self.packed.view(-1, unit * self.packed.shape[1])
        queries = self.q[None, None].split(self.plan.block_q, 2)
        within = np.arange(size)
        rows: list[int] = []
        indices: list[np.ndarray] = []
        counts: list[int] = []

        def run() -> None:
            index = torch.from_numpy(np.concatenate(indices))
            gathered = self._scratch(sum(counts))
            torch.index_select(source, 0, index, out=gathered.view(-1, source.shape[1]))
            key, value = gathered[None, None].split(self.head_size, -1)
            parts = zip(rows, key.split(counts, 2), value.split(counts, 2), strict=True)
            for row, key, value in parts:
                part = _fused_attention(queries[row], key, value, 0.0, False, scale=self.scale)
                self.prefixes.append((self._rows(row, row + 1), *part))

        for row in plain:
            index = self.blocks[row, self.block_from[row] : self.block_to[row]]
            if singles:
                index = (index[:, None] * size + within).ravel()
                index = np.concatenate([index, singles[row]]) if row in singles else index
            if not len(index):
                continue
            if sum(counts) + len(index) * unit > _GATHER_KEYS and rows:
                run()
                rows, indices, counts = [], [], []
            rows.append(row)
            indices.append(index)
            counts.append(len(index) * unit)
        if rows:
            run()

    def _single_keys(self, row: int) -> np.ndarray:
        """Keys that a plain row's prefix reads one by one: columns, and blocks that padding or ``first`` cut."""
        size, first = self.plan.block_k, int(self.first[row])
        columns = self.columns[row, self.column_from[row] : self.column_to[row]]
        if first % size == 0 and not self.cut[row]:
            return columns
        own = np.arange(max(first // size * size, self.key_start), first)
        padded = np.arange(self.key_start, self.key_start // size * size + size) if self.cut[row] else own[:0]
        return np.concatenate([columns, own, padded])

    def _scratch(self, count: int) -> torch.Tensor:
        """Memory of the thread's own, [count, 2 D]; the next call overwrites it."""
        if not hasattr(self.scratch, "keys") or len(self.scratch.keys) < count:
            self.scratch.keys = self.packed.new_empty(max(2 * count, _GATHER_KEYS), self.packed.shape[1])
        return self.scratch.keys[:count]

    def _masked_row(self, row: int) -> None:
        """Compute any row by comparing positions; softmax in float32 (float64 for float64 inputs)."""
        plan, device = self.plan, self.packed.device
        first, last = int(self.first[row]), int(self.last[row])
        lowest = self.key_start if plan.window is None else max(self.key_start, first - plan.window + 1)
        position = np.arange(lowest, last + 1)
        if not self.dense[row]:
            listed = self.blocks[row, self.block_live[row], None] * plan.block_k + np.arange(plan.block_k)
            position = np.concatenate([listed.ravel(), self.columns[row, self.column_live[row]]])
            position = position[(position >= lowest) & (position <= last)]
        if not len(position):
            return
        where = torch.from_numpy(position).to(device)
        keys = self.packed[lowest : last + 1] if self.dense[row] else self.packed.index_select(0, where)
        rows = self._rows(row, row + 1)
        dtype = _softmax_dtype(self.q)
        key, value = keys.to(dtype).split(self.head_size, -1)
        logits = self.q[rows].to(dtype) @ key.mT * self.scale
        if plan.softcap is not None:
            logits = plan.softcap * torch.tanh(logits / plan.softcap)
        query = torch.arange(first, last + 1, device=device)[:, None]
        hidden = where > query
        if plan.window is not None:
            hidden |= where <= query - plan.window
        logits.masked_fill_(hidden, -torch.inf)
        lse = logits.logsumexp(-1)
        weights = torch.exp(logits - lse.masked_fill(lse == -torch.inf, 0.0)[:, None])
        self.diagonals.append((rows, weights @ value, lse))

    def _merge(self, out: torch.Tensor, lse: torch.Tensor) -> None:
        """Sum the two parts, each weighted by its share of the softmax's denominator; a sink adds to that alone."""
        diagonal, diagonal_lse = self._assemble(self.diagonals)
        prefix, prefix_lse = self._assemble(self.prefixes)
        total = torch.logaddexp(diagonal_lse, prefix_lse)
        if self.sink > -np.inf:
            total = torch.logaddexp(total, torch.full_like(total, self.sink))
        lse.copy_(total)
        # A row without keys has no share to divide by.
        total.masked_fill_(total == -torch.inf, 0.0)
        merged = out if out.dtype == diagonal.dtype else diagonal
        torch.mul(diagonal, torch.exp(diagonal_lse - total)[:, None], out=merged)
        merged.addcmul_(prefix, torch.exp(prefix_lse - total)[:, None])
        if merged is not out:
            out.copy_(merged)

    def _assemble(self, parts: list[Part]) -> tuple[torch.Tensor, torch.Tensor]:
        """The parts in order as one out [queries, D] and lse [queries]; queries without a part get 0 and -inf."""
        dtype = _softmax_dtype(self.q)
        outs: list[torch.Tensor] = []
        lses: list[torch.Tensor] = []

        def skip(count: int) -> None:
            if count:
                outs.append(self.q.new_zeros((count, self.head_size), dtype=dtype))
                lses.append(self.q.new_full((count,), -torch.inf, dtype=dtype))

        done = 0
        for rows, out, lse in sorted(parts, key=lambda part: part[0].start):
            skip(rows.start - done)
            outs.append(out.view(-1, self.head_size).to(dtype))
            lses.append(lse.view(-1).to(dtype))
            done = rows.stop
        skip(len(self.q) - done)
        return (torch.cat(outs), torch.cat(lses)) if len(outs) > 1 else (outs[0], lses[0])


def _softmax_dtype(q: torch.Tensor) -> torch.dtype:
    return torch.float64 if q.dtype == torch.float64 else torch.float32


def _live(lists: np.ndarray, count: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    """Lists [R, X] cut to the longest one, int64, and which entries count, bool [R, X]."""
    lists = lists[:, : count.max(initial=0)].astype(np.int64)
    return lists, np.arange(lists.shape[1]) < count[:, None]


def _ascending(lists: np.ndarray, live: np.ndarray) -> np.ndarray:
    """Which lists of [R, X] strictly ascend over the entries that count, bool [R]."""
    return ((lists[:, 1:] > lists[:, :-1]) | ~live[:, 1:]).all(1)


def _runs(rows: np.ndarray) -> list[tuple[int, int]]:
    """The maximal ranges [begin, end) of true entries."""
    edges = np.flatnonzero(np.diff(rows.astype(np.int8), prepend=0, append=0)).tolist()
    return list(zip(edges[::2], edges[1::2], strict=True))
