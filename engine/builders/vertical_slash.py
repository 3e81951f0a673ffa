"""Vertical-slash: single columns and diagonal bands, ranked by the recent rows' attention (MInference, sec. 3.2).

Columns are ranked by summed mass over the recent rows, leaving out the offsets that every plan's diagonal reads.
Diagonals are ranked in the kernel's unit. Reading the KV block at distance D below a query block's first block
serves the offsets d for which floor((phase + x - d) / block_k) = -D, x = 0 .. block_q - 1; hence

    band(D) = sum_d diagonal_mass(d) * #{x : floor((phase + x - d) / block_k) = -D}

is the mass that band D brings to all rows of a query block if the diagonals continue, and costs one tile.
(The paper ranks single diagonals, of which one costs two or three tiles; see CONTRIBUTING.md.)
"""

from __future__ import annotations

import torch
import torch.nn.functional as F

from routesparse.engine import device_path
from routesparse.engine.builders.level_map import NEVER, FamilyIndex
from routesparse.engine.patterns import Candidate
from routesparse.engine.probe import AttentionInputs, Probe
from routesparse.engine.readout import constant
from routesparse.engine.segments import Segment
from routesparse.kernels import index_triton


def build(
    inputs: AttentionInputs,
    segment: Segment,
    probe: Probe,
    forced: torch.Tensor,
    causal: torch.Tensor,
    budgets: list[Candidate],
) -> FamilyIndex:
    """Level l keeps the best ``budgets[l].columns`` columns and ``budgets[l].blocks`` bands of each head."""
    bands = band_mass(probe.diagonal_mass, segment)
    order = bands.argsort(dim=-1, descending=True, stable=True)
    band_levels = torch.full(bands.shape, NEVER, dtype=torch.uint8, device=bands.device)
    for level in reversed(range(len(budgets))):
        kept = order[..., : budgets[level].blocks]
        band_levels.scatter_(-1, kept, torch.full_like(kept, level, dtype=torch.uint8))

    if device_path.fused(inputs.q):
        levels = index_triton.slash_levels(band_levels, segment.place(inputs.first_keys()))
    else:
        base = constant(segment.base_blocks(), bands.device).view(-1, 1)
        distance = (base - torch.arange(segment.key_blocks, device=bands.device)).clamp_min(0)
        levels = band_levels[:, :, distance]
        levels.masked_fill_(forced, 0).masked_fill_(~causal, NEVER)

    most = min(max(c.columns for c in budgets), segment.keys)
    columns = probe.column_mass.topk(most, dim=-1).indices
    return FamilyIndex("vertical_slash", levels, columns, tuple(min(c.columns, most) for c in budgets))


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
