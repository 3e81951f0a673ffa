"""What the twin of row plans and their kernel share."""

from __future__ import annotations

from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.rules import LISTED_SHARE


def capacity(geometry: SegmentGeometry) -> int:
    """KV blocks that a listed row may hold."""
    return max(geometry.block_q // geometry.block_k + 2, int(LISTED_SHARE * geometry.key_blocks))
