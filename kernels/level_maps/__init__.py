"""Level maps (paper section 3.1): for each query and KV block the smallest budget of a family that reads it.

uint8 [B, H, M, N], NEVER where no budget does. Budgets of a family are nested, so level b reads the blocks with
``map <= b``. The sink block, the diagonal blocks and ``local_blocks`` before them have level 0.
"""

from __future__ import annotations

from routesparse.kernels.common import dispatched
from routesparse.kernels.level_maps import launch, naive
from routesparse.kernels.level_maps.contract import MAX_LEVELS
from routesparse.kernels.rules import NEVER

__all__ = ["MAX_LEVELS", "NEVER", "band_levels", "readers", "score_levels", "slash_levels"]

band_levels = dispatched(naive.band_levels, launch.band_levels)
slash_levels = dispatched(naive.slash_levels, launch.slash_levels)
score_levels = dispatched(naive.score_levels, launch.score_levels)
readers = dispatched(naive.readers, launch.readers)
