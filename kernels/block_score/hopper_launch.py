"""Launches ``hopper_kernel``, which uses Hopper's own instructions, and says what that kernel can compute."""

from __future__ import annotations

from typing import Any

import torch

from routesparse.kernels.block_score.naive import ALIGNED_QUERY_BLOCKS
from routesparse.kernels.common import gpu_of, knows_ptx, launch
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits

ROWS = 16  # scored rows of a query block: those that one warp's part of a product holds
SHARED_BYTES = 200_000  # of a multiprocessor's, for queries and stages


def can_run(logits: Logits, rows: int, clusters: int) -> bool:
    """Whether the kernel can compute these scores on the current machine."""
    q = logits.q
    plain = knows_ptx() and q.element_size() == 2 and q.stride(3) == 1 and not logits.softcap
    shape = (rows, clusters) == (ROWS, 1) and q.shape[3] in (64, 128)
    return plain and shape and torch.cuda.get_device_capability(gpu_of(q))[0] == 9


def settings(head_size: int) -> dict[str, int]:
    """Stages that fill the shared memory beside the queries and their squares, and registers per thread."""
    return {
        "STAGES": (SHARED_BYTES - 512 * head_size) // (512 * head_size),
        "CONSUMER_REGISTERS": 216,
        "PRODUCER_REGISTERS": 72,
    }


def launch_scores(
    logits: Logits, geometry: SegmentGeometry, features: torch.Tensor, common: dict[str, Any]
) -> None:
    """Fill the scores; features as in ``descriptions``, common: what the portable kernel takes as well."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from routesparse.kernels.block_score.hopper_kernel import hopper_score_kernel

    q = logits.q
    flat = features.flatten(0, 2)
    box = gl.NVMMASharedLayout(128, 16, rank=2)
    tiles = -(-geometry.query_blocks // ALIGNED_QUERY_BLOCKS)
    programs = torch.cuda.get_device_properties(gpu_of(q)).multi_processor_count
    launch(
        hopper_score_kernel,
        (min(tiles * common["units"], programs),),
        logits.arguments(),
        geometry.arguments(),
        common,
        settings(q.shape[3]),
        lengths=("tiles",),
        desc=TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [64, 64], box),
        tiles=tiles,
        num_warps=4,
    )
