"""A-shape: the sink block and a local window of KV blocks; closed form, the same for every head."""

from __future__ import annotations

import numpy as np

from routesparse.engine.device.constants import constant
from routesparse.engine.method.families.level_map import FamilyIndex
from routesparse.engine.method.patterns import Candidate
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.level_maps import closed_levels


def build(geometry: SegmentGeometry, budgets: list[Candidate]) -> FamilyIndex:
    """Level l keeps the ``budgets[l].blocks`` KV blocks that end at the query block's diagonal. [B, 1, M, N]"""
    blocks = constant(np.array([c.blocks for c in budgets], dtype=np.int32), geometry.first_keys.device)
    return FamilyIndex("a_shape", closed_levels(blocks, geometry))
