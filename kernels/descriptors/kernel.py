"""The device code of a head's descriptors."""

from __future__ import annotations

import triton
import triton.language as tl

from routesparse.kernels.device_functions import row_mean, row_sum


@triton.jit
def describe_units_kernel(
    entropy_ptr, local_ptr, spread_ptr, out_ptr, units, count, octaves, recent, routing, certificate,
    ROWS: tl.constexpr, OCTAVES: tl.constexpr,
):  # fmt: skip
    """One unit: mean entropy, mean local mass (certificate rows aside), agreement; out float32 [3, units]."""
    unit = tl.program_id(0).to(tl.int64)
    seen = recent + routing
    after = seen + certificate
    base = unit * count
    spread = spread_ptr + base * octaves
    asked = row_mean(spread, recent, octaves, ROWS, OCTAVES)
    body = row_mean(spread + recent * octaves, routing, octaves, ROWS, OCTAVES)
    agreement = 1.0 - 0.5 * tl.sum(tl.abs(asked - body), 0)
    # As rows of width 1.
    entropy = row_sum(entropy_ptr + base, seen, 1, ROWS, 1) + row_sum(
        entropy_ptr + base + after, count - after, 1, ROWS, 1
    )
    local = row_sum(local_ptr + base, seen, 1, ROWS, 1) + row_sum(
        local_ptr + base + after, count - after, 1, ROWS, 1
    )
    routed = count - certificate
    tl.store(out_ptr + unit, (tl.sum(entropy, 0) / routed).to(tl.float32))
    tl.store(out_ptr + units + unit, (tl.sum(local, 0) / routed).to(tl.float32))
    tl.store(out_ptr + 2 * units + unit, agreement.to(tl.float32))
