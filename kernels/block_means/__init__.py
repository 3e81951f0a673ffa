"""Means of blocks of queries or keys: pooled scores of blocks, the keys of the pooled probe (eq. 3)."""

from __future__ import annotations

from routesparse.kernels.block_means import launch, naive
from routesparse.kernels.common import dispatched, dispatched_on_gpu

block_means = dispatched(naive.block_means, launch.block_means)
pooled_scores = dispatched_on_gpu(naive.pooled_scores, launch.pooled_scores)
