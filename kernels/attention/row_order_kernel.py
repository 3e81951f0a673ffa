"""The order in which the attention kernels take a plan's rows, as a counting sort in one program per KV head.

Ordering by 256 steps of a row's length takes one launch of 13 us on an H200; a sort with ten small operations took 80.
"""

from __future__ import annotations

import triton
import triton.language as tl


@triton.jit(do_not_specialize=["most"])
def order_kernel(
    dense_ptr, block_count_ptr, column_count_ptr, place_ptr, order_ptr,
    rows, query_blocks, first, n_k, most,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """Sort the rows of one KV head by falling number of tiles, to within STEPS steps; rows of one step in any order."""
    unit = tl.program_id(0)
    edge = tl.arange(0, STEPS)
    counts = tl.zeros([STEPS], dtype=tl.int32)
    for start in range(0, rows, AT_ONCE):
        row, step = _steps(
            dense_ptr, block_count_ptr, column_count_ptr, unit * rows, start, rows, query_blocks, first, n_k, most,
            BLOCK_Q, BLOCK_K, STEPS, AT_ONCE,
        )  # fmt: skip
        counts += tl.histogram(step, STEPS, mask=row < rows)
    tl.store(place_ptr + unit * STEPS + edge, tl.cumsum(counts, 0) - counts)
    tl.debug_barrier()
    for start in range(0, rows, AT_ONCE):
        row, step = _steps(
            dense_ptr, block_count_ptr, column_count_ptr, unit * rows, start, rows, query_blocks, first, n_k, most,
            BLOCK_Q, BLOCK_K, STEPS, AT_ONCE,
        )  # fmt: skip
        place = tl.atomic_add(place_ptr + unit * STEPS + step, 1, mask=row < rows)
        tl.store(order_ptr + unit * rows + place, unit * rows + row, mask=row < rows)


@triton.jit
def _steps(
    dense_ptr, block_count_ptr, column_count_ptr, base, start, rows, query_blocks, first, n_k, most,
    BLOCK_Q: tl.constexpr, BLOCK_K: tl.constexpr, STEPS: tl.constexpr, AT_ONCE: tl.constexpr,
):  # fmt: skip
    """AT_ONCE rows from ``start`` and the step of each: 0 for ``most`` tiles, STEPS - 1 for none."""
    row = start + tl.arange(0, AT_ONCE)
    real = row < rows
    last = tl.minimum(first + (row % query_blocks + 1) * BLOCK_Q, n_k) - 1
    listed = tl.load(block_count_ptr + base + row, mask=real, other=0)
    listed += (tl.load(column_count_ptr + base + row, mask=real, other=0) + BLOCK_K - 1) // BLOCK_K
    dense = tl.load(dense_ptr + base + row, mask=real, other=0) != 0
    tiles = tl.where(dense, last // BLOCK_K + 1, listed)
    # Most rows read a small share of the tiles; the root gives small shares the finer steps.
    share = tl.sqrt(tl.minimum(tiles.to(tl.float32) / most, 1.0))
    return row, ((1.0 - share) * (STEPS - 1)).to(tl.int32)
