"""Diagonals in the kernel's unit: the mass that one band of KV blocks brings to a query block.

Reading the KV block at distance D below a query block's first block serves the offsets d for which
floor((phase + x - d) / block_k) = -D, x = 0 .. block_q - 1; hence

    band(D) = sum_d diagonal_mass(d) * #{x : floor((phase + x - d) / block_k) = -D}

is the mass that band D brings to all rows of a query block if the diagonals continue, and costs one tile.
The paper ranks single diagonals; but a single diagonal costs two or three tiles of a query block, so the band, which
costs one, is what a budget should count.
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from routesparse.engine.method.segments import Segment


def band_mass(diagonal_mass: torch.Tensor, segment: Segment) -> torch.Tensor:
    """diagonal_mass [B, H, K] by offset -> [B, H, N] by block distance D (see the module's formula)."""
    block, rows = segment.block_k, segment.block_q
    shift = torch.arange(-block + 1, rows, device=diagonal_mass.device)
    weight = ((shift + block).clamp_max(rows) - shift.clamp_min(0)).clamp_min(0).to(diagonal_mass)
    keys = diagonal_mass.shape[-1]
    # Offset d meets band D at shift d - D * block - phase.
    left = block - 1 - segment.phase
    right = segment.key_blocks * block + rows - keys
    padded = F.pad(diagonal_mass, (left, max(0, right)))
    # Not a convolution: a GPU may round those to TF32.
    bands = padded.unfold(-1, len(weight), block) @ weight
    return bands[..., : segment.key_blocks].contiguous()
