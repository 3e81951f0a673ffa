"""Block log-sum-exps of the probe's rows (paper section 3.2, exact probe): a few rows against every key."""

from __future__ import annotations

from routesparse.kernels.block_lse import launch, naive
from routesparse.kernels.common import dispatched

block_lse = dispatched(naive.block_lse, launch.block_lse)
