"""Vertical-slash: single columns and diagonal bands, ranked by the recent rows' attention (MInference, sec. 3.2).

Columns are ranked by summed mass over the recent rows, leaving out the offsets that every plan's diagonal reads;
diagonals as bands of KV blocks (``kernels/recent_marginals``).
"""

from __future__ import annotations

import numpy as np
import torch

from routesparse.engine.device.constants import constant
from routesparse.engine.method.families.level_map import FamilyIndex
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.probe import Probe
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.level_maps import NEVER, slash_levels


def build(geometry: SegmentGeometry, probe: Probe, budgets: list[Candidate]) -> FamilyIndex:
    """Level l keeps the best ``budgets[l].columns`` columns and ``budgets[l].blocks`` bands of each head."""
    levels = slash_levels(_band_levels(probe.band_mass, budgets), geometry)
    most = min(max(c.columns for c in budgets), probe.column_mass.shape[-1])
    columns = probe.column_mass.topk(most, dim=-1).indices
    return FamilyIndex("vertical_slash", levels, columns, tuple(min(c.columns, most) for c in budgets))


def _band_levels(bands: torch.Tensor, budgets: list[Candidate]) -> torch.Tensor:
    """The smallest level that keeps each band: uint8 [B, H, N] of band masses [B, H, N]."""
    rank = np.arange(bands.shape[-1])
    level = np.searchsorted(np.array([c.blocks for c in budgets]), rank, side="right")
    of_rank = constant(np.where(level < len(budgets), level, NEVER).astype(np.uint8), bands.device)
    order = bands.argsort(dim=-1, descending=True, stable=True)
    return torch.empty_like(bands, dtype=torch.uint8).scatter_(-1, order, of_rank.expand(bands.shape))
