"""The contract on plain torch: the CPU's backend, and a slow but correct one on any other device.

A unit of work is a span of query blocks of one head (``torch_span`` computes it). On the CPU the spans run
on as many Python threads as torch has, each with one torch thread of its own: many small operators that
each fork and join lose a third of their time, and far more when another process wants a core.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from routesparse.kernels.interface import RowPlan
from routesparse.kernels.torch_span import HostLists, Span, Unit

# Enough spans per thread that the longest of them does not decide, and few enough that they stay large.
_SPANS_PER_THREAD = 8
_SPAN_ROWS = 4096


@torch.no_grad()
def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, n_q, D] in q's dtype and lse [B, Hq, n_q] float32; see ``sparse_attention``.

    Forward only: the result carries no gradient.
    """
    out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    lists = HostLists.of(plan)
    group = q.shape[1] // k.shape[1]
    packed = [[_pack(k[b, h], v[b, h], plan.block_k) for h in range(k.shape[1])] for b in range(q.shape[0])]
    scratch = threading.local()

    def run(unit: Unit) -> None:
        batch, head, begin, end = unit
        rows = slice(begin * plan.block_q, min(end * plan.block_q, plan.n_q))
        span = Span(q[batch, head, rows], packed[batch][head // group], plan, lists, unit, scale, scratch)
        span.attend(out[batch, head, rows], lse[batch, head, rows])

    threads = torch.get_num_threads() if q.device.type == "cpu" else 1
    _run_units(run, _units(plan, lists, threads), threads)
    return out, lse


def _pack(k: torch.Tensor, v: torch.Tensor, block_k: int) -> torch.Tensor:
    """One KV head as [n_k rounded up to blocks, 2 D]: a single gather then fetches keys and values."""
    count, size = k.shape
    packed = k.new_empty(-(-count // block_k) * block_k, 2 * size)
    packed[:count, :size] = k
    packed[:count, size:] = v
    packed[count:] = 0
    return packed


def _units(plan: RowPlan, lists: HostLists, threads: int) -> list[Unit]:
    """(batch, head, first query block, end), the most work first so that threads finish together."""
    rows = plan.batch * plan.heads * plan.n_q // (threads * _SPANS_PER_THREAD)
    size = max(1, min(rows, _SPAN_ROWS) // plan.block_q)
    reach = np.arange(1, plan.query_blocks + 1) * plan.block_q + plan.key_offset
    keys = np.where(lists.dense_rows, reach, lists.block_count * plan.block_k + lists.column_count)
    units = [
        (batch, head, begin, min(begin + size, plan.query_blocks))
        for batch in range(plan.batch)
        for head in range(plan.heads)
        for begin in range(0, plan.query_blocks, size)
    ]
    return sorted(units, key=lambda unit: -int(keys[unit[0], unit[1], unit[2] : unit[3]].sum()))


def _run_units(run: Callable[[Unit], None], units: Sequence[Unit], threads: int) -> None:
    """Run every unit, on ``threads`` Python threads of one torch thread each."""

    def quietly(unit: Unit) -> None:
        # Gradient mode belongs to a thread.
        with torch.no_grad():
            run(unit)

    if threads == 1 or len(units) == 1:
        for unit in units:
            quietly(unit)
        return
    try:
        with ThreadPoolExecutor(threads, initializer=torch.set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(quietly, units):
                pass
    finally:
        # The workers' setting is theirs, but threads started later would inherit the last one made.
        torch.set_num_threads(threads)
