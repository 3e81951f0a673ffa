"""Launches the betting bound's kernel: one program a bound, without waiting for the host."""

from __future__ import annotations

import math
from typing import Any

from routesparse.kernels.betting_bound.contract import BET_CAP, BISECTIONS
from routesparse.kernels.launching import variant

BITS = 4  # of a bound that a round of its search finds; as measured on an H200


def betting_lower_bound(x: Any, error: float) -> Any:
    """``naive.betting_lower_bound`` of a tensor that Triton takes: x float64 [..., C] -> [...]."""
    from routesparse.kernels.betting_bound.kernel import betting_kernel

    x = x.contiguous()
    count = x.shape[-1]
    bound = x.new_empty(x.shape[:-1])
    padded = max(16, 1 << (count - 1).bit_length())  # the kernel reads 16 rows at a time
    scratch = x.new_empty(bound.numel(), 2, padded + 1)
    variant(betting_kernel)[(bound.numel(),)](
        x,
        scratch,
        bound,
        count,
        TARGET=math.log(1.0 / error),
        BET_CAP=BET_CAP,
        BISECTIONS=BISECTIONS,
        BITS=BITS,
        C=padded,
        num_warps=1,
        # The decisions are those of the twin, rounding included.
        enable_fp_fusion=False,
    )
    return bound
