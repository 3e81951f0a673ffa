"""Vertical-slash: single columns and diagonal bands, ranked by the recent rows' attention (MInference, sec. 3.2).

Columns are ranked by summed mass over the recent rows, leaving out the offsets that every plan's diagonal reads;
diagonals as bands of KV blocks (engine/bands.py).
"""

from __future__ import annotations

import torch

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
    bands = probe.band_mass
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
