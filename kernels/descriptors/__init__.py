"""Descriptors of a head (paper section 3.2): entropy, local band, agreement, means over the rows of its probe."""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, power_of_two, variant
from routesparse.kernels.descriptors import naive

SUM_ROWS = 64  # rows that a mean adds up at once


@dispatched(naive.describe_units)
def describe_units(
    entropy: torch.Tensor, local: torch.Tensor, spread: torch.Tensor, sizes: tuple[int, int, int, int]
) -> torch.Tensor:
    """See the naive twin."""
    from routesparse.kernels.descriptors.kernel import describe_units_kernel

    batch, heads, count, octaves = spread.shape
    out = torch.empty(3, batch, heads, dtype=torch.float32, device=spread.device)
    variant(describe_units_kernel, octaves=octaves)[(batch * heads,)](
        entropy.contiguous(),
        local.contiguous(),
        spread.contiguous(),
        out,
        batch * heads,
        count,
        octaves,
        *sizes[:3],
        ROWS=SUM_ROWS,
        OCTAVES=power_of_two(octaves),
        num_warps=4,
    )
    return out
