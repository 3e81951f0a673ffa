"""Launches ``hopper_kernel``, which uses Hopper's own instructions, and says what that kernel can compute."""

from __future__ import annotations

import torch

from routesparse.kernels.block_score.naive import ALIGNED_QUERY_BLOCKS, LEAST_SCORE, TILE
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.launching import gpu_of, variant
from routesparse.kernels.rules import NORMALISER_STEP

KINDS = ((16, 1), (32, 2))  # rows of a query block and clusters of a KV block
SHARED_BYTES = 229_376  # of a multiprocessor's, for queries and stages
WAY = "pair"


def can_run(q: torch.Tensor, kv_heads: int, rows: int, clusters: int, softcap: float | None) -> bool:
    """Whether the kernel can compute these scores."""
    if WAY == "single" and (rows, clusters) != (16, 1):
        return False
    shape = (rows, clusters) in KINDS and not softcap and q.shape[3] in (64, 128) and TILE == 64
    two = q.shape[1] // kv_heads % 2 == 0
    plain = shape and two and q.element_size() == 2 and q.stride(3) == 1
    return plain and torch.cuda.get_device_capability(gpu_of(q))[0] == 9


def settings(head_size: int) -> dict[str, int]:
    """Stages that fill the shared memory beside the queries and their squares, and registers per thread."""
    queries, stage = (1_024 * head_size, 256 * head_size) if WAY == "pair" else (512 * head_size, 512 * head_size)
    return {
        "STAGES": min(8 if WAY == "pair" else 5, (SHARED_BYTES - queries) // stage),
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
    clusters: int,
    scale: float,
    sinks: torch.Tensor | None,
    table: torch.Tensor | None,
) -> None:
    """Fill ``out``; chosen, features and counts as in ``launch``."""
    from triton.experimental.gluon import language as gl
    from triton.experimental.gluon.nvidia.hopper import TensorDescriptor

    from routesparse.kernels.block_score import hopper_kernel, hopper_pair_kernel

    batch, heads, _, head_size = q.shape
    kv_heads, described = features.shape[1:3]
    picked = chosen.shape[-1]
    query_blocks, key_blocks = geometry.query_blocks, geometry.key_blocks
    flat = features.flatten(0, 2)
    box = gl.NVMMASharedLayout(128, 16, rank=2)
    tiles = -(-query_blocks * picked // 128)
    units = batch * heads // 2 if WAY == "pair" else batch * heads
    programs = torch.cuda.get_device_properties(gpu_of(q)).multi_processor_count
    lengths = {
        "rows": geometry.rows,
        "tiles": tiles,
        "query_blocks": query_blocks,
        "key_blocks": key_blocks,
        "segment_keys": geometry.keys,
    }
    options = {}
    kernel = hopper_kernel.hopper_score_kernel
    if WAY == "pair":
        kernel = hopper_pair_kernel.hopper_score_kernel
        options = {"ALIGNED": ALIGNED_QUERY_BLOCKS, "CLUSTERS": clusters, "PICKED": picked}
        lengths["described"] = described
    variant(kernel, **lengths)[(min(tiles * units, programs),)](
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
        units,
        tiles,
        first,
        geometry.rows,
        query_blocks,
        key_blocks,
        *((described,) if WAY == "pair" else ()),
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
        **options,
        **settings(head_size),
        num_warps=4,
    )
