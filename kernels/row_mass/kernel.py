"""The device code of row masses: each probe row's softmax mass by KV block, from its block log-sum-exps."""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import LN2, LOG2E


@triton.jit
def row_mass_kernel(
    block_lse_ptr, lse_ptr, sink_mass_ptr, entropy_ptr, local_ptr, spread_ptr, finite_ptr, sinks_ptr,
    position_ptr, first_key_ptr, heads, count, key_blocks, block_k, local_blocks,
    N: tl.constexpr, OCTAVES: tl.constexpr, SINKS: tl.constexpr,
):  # fmt: skip
    """One probe row: its log-sum-exp, the sink's mass, and its block masses over the block log-sum-exps.

    Also the masses' entropy over blocks, their sum near the diagonal and their sums by octave of distance (0: the first
    block). finite becomes 0 where the log-sum-exp of a row behind the padding is not finite.
    """
    row = tl.program_id(0).to(tl.int64)
    n = tl.arange(0, N)
    values_ptr = block_lse_ptr + row * key_blocks
    values = tl.load(values_ptr + n, mask=n < key_blocks, other=-float("inf"))
    top = tl.max(values, 0)
    if SINKS:
        sink = tl.load(sinks_ptr + (row // count) % heads)
        top = tl.maximum(top, sink)
    shift = tl.where(top == -float("inf"), 0.0, top)
    weights = tl.exp2((values - shift) * LOG2E)
    inside = tl.sum(weights, 0)
    total = inside
    if SINKS:
        sink_weight = tl.exp2((sink - shift) * LOG2E)
        total += sink_weight
        tl.store(sink_mass_ptr + row, sink_weight / total)
    lse = tl.where(total > 0, shift + tl.log2(total) * LN2, top + total)
    tl.store(lse_ptr + row, lse)
    position = tl.load(position_ptr + row)
    bad = (position >= tl.load(first_key_ptr + row // count // heads)) & ((lse - lse) != 0.0)
    tl.store(finite_ptr, 0, mask=bad)

    # NaN rows are reported by their log-sum-exp; their masses count as none.
    real = (total > 0) & (total < float("inf"))
    share = tl.where(real, 1.0 / tl.where(real, total, 1.0), 0.0)
    own = (position // block_k).to(tl.int32)
    # The masses' entropy from their logarithms, values - lse.
    logs = tl.sum(tl.where(weights > 0, weights * (values - shift), 0.0), 0)
    entropy = (inside * tl.log2(tl.where(real, total, 1.0)) * LN2 - logs) * share
    tl.store(entropy_ptr + row, tl.where(real, entropy, 0.0))
    near = tl.sum(tl.where(own - n < local_blocks, weights, 0.0), 0)
    tl.store(local_ptr + row, tl.where(real, near * share, 0.0))
    for octave in tl.static_range(OCTAVES):
        if octave == 0:
            part = tl.exp2((tl.load(values_ptr) - shift) * LOG2E)
        elif (1 << octave) <= N:
            # Distances [2^(octave - 1) - 1, 2^octave - 1), the first block aside.
            at = own + 1 - (1 << (octave - 1)) - tl.arange(0, 1 << (octave - 1))
            part = tl.load(values_ptr + at, mask=at > 0, other=-float("inf"))
            part = tl.sum(tl.exp2((part - shift) * LOG2E), 0)
        else:
            part = 0.0
        tl.store(spread_ptr + row * OCTAVES + octave, tl.where(real, part * share, 0.0))
    # The masses take the place of what every thread has read by now.
    tl.debug_barrier()
    tl.store(values_ptr + n, tl.where(real, weights * share, 0.0), mask=n < key_blocks)
