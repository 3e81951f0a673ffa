"""The betting bound: a lower confidence bound of the mean of rows in [0, 1] (the in-prompt certificate's default).

``naive.py`` has the formula and its source, ``kernel.py`` the same search on a GPU. Both end at the same mean but for
the rounding of a logarithm, which may move a bound by one bisection (2^-24).
"""

from __future__ import annotations

import math
from typing import Any

from routesparse.kernels.betting_bound import naive
from routesparse.kernels.betting_bound.naive import BET_CAP, BISECTIONS
from routesparse.kernels.common import dispatched, variant

__all__ = ["BET_CAP", "BISECTIONS", "betting_lower_bound"]

BITS = 4  # of a bound that a round of its search finds; as measured on an H200


@dispatched(naive.betting_lower_bound)
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
