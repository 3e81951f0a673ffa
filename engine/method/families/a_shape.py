"""A-shape: the sink block and a local window of KV blocks; closed form, the same for every head."""

from __future__ import annotations

import numpy as np
import torch

from routesparse.engine.device.constants import constant
from routesparse.engine.method.families.level_map import NEVER, FamilyIndex
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.segments import Segment
from routesparse.kernels import index_triton


def build(
    segment: Segment, forced: torch.Tensor, causal: torch.Tensor, budgets: list[Candidate]
) -> FamilyIndex:
    """Level l keeps the ``budgets[l].blocks`` KV blocks that end at the query block's diagonal. [B, 1, M, N]"""
    last = constant(segment.last_blocks(), causal.device).view(1, 1, -1, 1)
    distance = last - torch.arange(segment.key_blocks, device=causal.device)
    levels = torch.full(causal.shape, NEVER, dtype=torch.uint8, device=causal.device)
    for level in reversed(range(len(budgets))):
        levels.masked_fill_(distance < budgets[level].blocks, level)
    levels.masked_fill_(forced, 0).masked_fill_(~causal, NEVER)
    return FamilyIndex("a_shape", levels)


def build_fused(place: index_triton.Place, budgets: list[Candidate]) -> FamilyIndex:
    """``build`` by one kernel."""
    blocks = constant(np.array([c.blocks for c in budgets], dtype=np.int32), place.first_keys.device)
    return FamilyIndex("a_shape", index_triton.closed_levels(blocks, place))
