"""Sparse attention in plain torch: the backend of the CPU, and a slow but correct one on any other device.

The work is cut into spans, consecutive query blocks of one head (``torch_span`` computes one). On the CPU, spans run
on as many Python threads as torch has, each with one torch thread of its own. One Python thread whose small operators
each fork and join torch's threads loses a third of the time, and far more when another process wants a core.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np
import torch

from routesparse.kernels.attention.torch_span import HostLists, Span, SpanRange
from routesparse.kernels.plan import RowPlan

# Enough spans per thread that the longest does not decide the whole time; at most so many queries in one.
_SPANS_PER_THREAD = 8
_SPAN_ROWS = 4096

# Not torch's own name: vLLM's worker puts a warning in its place.
_set_num_threads = torch._C.set_num_threads


@torch.no_grad()
def attend(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, plan: RowPlan, scale: float
) -> tuple[torch.Tensor, torch.Tensor]:
    """out [B, Hq, n_q, D] in q's dtype and lse [B, Hq, n_q] float32; see ``sparse_attention``.

    Forward only: the result carries no gradient.
    """
    # The heads of a token side by side, as the model's next product reads them: it needs no copy.
    out = q.new_empty(q.shape[0], q.shape[2], q.shape[1], q.shape[3]).transpose(1, 2)
    lse = torch.empty(q.shape[:3], dtype=torch.float32, device=q.device)
    lists = HostLists.of(plan)
    group = q.shape[1] // k.shape[1]
    packed = _pack(k, v, plan.block_k)
    scratch = threading.local()

    def run(span_range: SpanRange) -> None:
        batch, head, begin, end = span_range
        rows = slice(begin * plan.block_q, min(end * plan.block_q, plan.n_q))
        span = Span(
            q[batch, head, rows], packed[batch, head // group], plan, lists, span_range, scale, scratch
        )
        span.attend(out[batch, head, rows], lse[batch, head, rows])

    threads = torch.get_num_threads() if q.device.type == "cpu" else 1
    _run_all(run, _span_ranges(plan, lists, threads), threads)
    return out, lse


def _pack(k: torch.Tensor, v: torch.Tensor, block_k: int) -> torch.Tensor:
    """Keys and values side by side, [B, Hkv, n_k rounded up to blocks, 2 D], so that one gather fetches both."""
    batch, heads, count, size = k.shape
    packed = k.new_empty(batch, heads, -(-count // block_k) * block_k, 2 * size)
    packed[:, :, :count, :size] = k
    packed[:, :, :count, size:] = v
    packed[:, :, count:] = 0
    return packed


def _span_ranges(plan: RowPlan, lists: HostLists, threads: int) -> list[SpanRange]:
    """All spans of the plan, those with the most keys first so that threads finish together."""
    rows = plan.batch * plan.heads * plan.n_q // (threads * _SPANS_PER_THREAD)
    size = max(1, min(rows, _SPAN_ROWS) // plan.block_q)
    reach = np.arange(1, plan.query_blocks + 1) * plan.block_q + plan.key_offset
    keys = np.where(lists.dense_rows, reach, lists.block_count * plan.block_k + lists.column_count)
    ranges = [
        (batch, head, begin, min(begin + size, plan.query_blocks))
        for batch in range(plan.batch)
        for head in range(plan.heads)
        for begin in range(0, plan.query_blocks, size)
    ]
    return sorted(ranges, key=lambda at: -int(keys[at[0], at[1], at[2] : at[3]].sum()))


def _run_all(run: Callable[[SpanRange], None], ranges: Sequence[SpanRange], threads: int) -> None:
    """Run every span, on ``threads`` Python threads of one torch thread each."""
    if threads == 1 or len(ranges) == 1:
        for span_range in ranges:
            run(span_range)
        return
    inference = torch.is_inference_mode_enabled()

    def as_the_caller(span_range: SpanRange) -> None:
        # A new thread starts with gradients on and outside of inference mode, where it may not write what the caller
        # made inside. inference_mode(False) alone would turn gradients on.
        with torch.inference_mode(inference), torch.no_grad():
            run(span_range)

    try:
        with ThreadPoolExecutor(threads, initializer=_set_num_threads, initargs=(1,)) as pool:
            for _ in pool.map(as_the_caller, ranges):
                pass
    finally:
        # set_num_threads in a worker binds that worker, but also every thread that is started after it.
        _set_num_threads(threads)
