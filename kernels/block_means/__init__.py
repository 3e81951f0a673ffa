"""Means of blocks of keys: what the pooled probe reads (eq. 3)."""

from __future__ import annotations

from routesparse.kernels.block_means import launch, naive
from routesparse.kernels.common import dispatched

block_means = dispatched(naive.block_means, launch.block_means)
