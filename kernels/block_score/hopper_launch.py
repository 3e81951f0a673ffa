"""Launches ``hopper_kernel``, which uses Hopper's own instructions, and says what that kernel can compute."""

from __future__ import annotations

import torch

from routesparse.kernels.block_score.naive import ALIGNED_QUERY_BLOCKS, LEAST_SCORE
from routesparse.kernels.common import gpu_of, knows_ptx, variant
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.rules import NORMALISER_STEP

ROWS = 16  # scored rows of a query block: those that one warp's part of a product holds
SHARED_BYTES = 200_000  # of a multiprocessor's, for queries and stages


def can_run(q: torch.Tensor, rows: int, clusters: int, softcap: float | None) -> bool:
    """Whether the kernel can compute these scores on the current machine."""
    plain = knows_ptx() and q.element_size() == 2 and q.stride(3) == 1 and not softcap
    shape = (rows, clusters) == (ROWS, 1) and q.shape[3] in (64, 128)
    return plain and shape and torch.cuda.get_device_capability(gpu_of(q))[0] == 9


def settings(head_size: int) -> dict[str, int]:
    """Stages that fill the shared memory beside the queries and their squares, and registers per thread."""
    return {
        "STAGES": (SHARED_BYTES - 512 * head_size) // (512 * head_size),
        "CONSUMER_REGISTERS": 216,
        "PRODUCER_REGISTERS": 72,
    }


def launch(
    q: torch.Tensor,
    chosen: torch.Tensor,
    features: torch.Tensor,
    counts: torch.Tensor,
    out: torch.Tensor,
    first: int,
    geometry: SegmentGeometry,
    *,
    scale: float,
    sinks: torch.Tensor | None,
    table: torch.Tensor | None,
) -> None:
    """Fill ``out``; chosen, features and counts as in ``launch``."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from routesparse.kernels.block_score.hopper_kernel import hopper_score_kernel

    batch, heads, _, head_size = q.shape
    kv_heads = features.shape[1]
    query_blocks, key_blocks = geometry.query_blocks, geometry.key_blocks
    flat = features.flatten(0, 2)
    box = gl.NVMMASharedLayout(128, 16, rank=2)
    tiles = -(-query_blocks // ALIGNED_QUERY_BLOCKS)
    programs = torch.cuda.get_device_properties(gpu_of(q)).multi_processor_count
    kernel = variant(
        hopper_score_kernel,
        rows=geometry.rows,
        tiles=tiles,
        query_blocks=query_blocks,
        key_blocks=key_blocks,
        segment_keys=geometry.keys,
    )
    kernel[(min(tiles * batch * heads, programs),)](
        q,
        out if table is None else table,
        TensorDescriptor(flat, list(flat.shape), list(flat.stride()), [64, 64], box),
        chosen,
        counts,
        out if sinks is None else sinks,
        geometry.first_keys,
        out,
        *q.stride(),
        heads,
        heads // kv_heads,
        batch * heads,
        tiles,
        first,
        geometry.rows,
        query_blocks,
        key_blocks,
        geometry.position,
        geometry.keys,
        scale,
        LEAST=LEAST_SCORE,
        BLOCK_Q=geometry.block_q,
        BLOCK_K=geometry.block_k,
        STEP=NORMALISER_STEP,
        HEAD=head_size,
        SINKS=sinks is not None,
        INDIRECT=table is not None,
        **settings(head_size),
        num_warps=4,
    )
