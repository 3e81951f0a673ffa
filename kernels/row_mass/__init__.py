"""Masses of each probe row by KV block, and what they add up to (paper section 3.2)."""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, power_of_two, variant
from routesparse.kernels.row_mass import naive
from routesparse.kernels.row_mass.naive import RowMass

__all__ = ["RowMass", "row_mass"]

# As measured on an H200.
ROW_WIDTH = 1_024  # KV blocks of a row that a warp takes


@dispatched(naive.row_mass)
def row_mass(
    block_lse: torch.Tensor,
    sinks: torch.Tensor | None,
    positions: torch.Tensor,
    first_keys: torch.Tensor,
    block_k: int,
    local_tokens: int,
) -> RowMass:
    """See the naive twin."""
    from routesparse.kernels.row_mass.kernel import row_mass_kernel

    batch, heads, count, key_blocks = block_lse.shape
    octaves = key_blocks.bit_length() + 2

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(batch, heads, count, *shape, dtype=torch.float32, device=block_lse.device)

    lse = empty()
    sink_mass = torch.zeros_like(lse) if sinks is None else empty()
    finite = torch.ones((), dtype=torch.bool, device=block_lse.device)
    found = RowMass(lse, sink_mass, empty(), empty(), empty(octaves), finite)
    width = power_of_two(key_blocks)
    variant(row_mass_kernel, key_blocks=key_blocks)[(lse.numel(),)](
        block_lse,
        *found[:5],
        # Triton reads a bool tensor as bytes.
        finite.view(torch.uint8),
        lse if sinks is None else sinks.detach().float().contiguous(),
        positions.contiguous(),
        first_keys,
        heads,
        count,
        key_blocks,
        block_k,
        local_tokens // block_k,
        N=width,
        OCTAVES=octaves,
        SINKS=sinks is not None,
        num_warps=max(1, min(16, width // ROW_WIDTH)),
    )
    return found
