"""Block scores by two kernels: KV blocks are described, then sampled rows meet the descriptions."""

from __future__ import annotations

import torch

from routesparse.kernels.block_score.naive import LEAST_SCORE
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.launching import power_of_two, product_constants, variant
from routesparse.kernels.rules import VARIANCE_WEIGHT

LAUNCH = (128, 64, 8, 2)  # rows and KV blocks of a tile, warps, stages; as measured on an H200
# Of a program's rows, their squares and the stages of descriptions: what smaller GPUs' shared memory holds.
SHARED_BYTES = 163_840


def block_score(
    q: torch.Tensor,
    k: torch.Tensor,
    first: int,
    geometry: SegmentGeometry,
    *,
    rows: int,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """The contract of the package. Errors: ValueError unless rows is a power of two."""
    from routesparse.kernels.block_score.kernel import block_score_kernel

    if rows & (rows - 1):
        raise ValueError(f"{rows} sampled rows of a query block; the kernel takes a power of two")
    batch, heads, _, head_size = q.shape
    query_blocks, key_blocks = geometry.query_blocks, geometry.key_blocks
    picked = min(rows, geometry.block_q)
    features = block_features(k, geometry, table)
    out = torch.empty(batch, heads, query_blocks, key_blocks, dtype=torch.float16, device=q.device)
    at_once, width, warps, stages = LAUNCH
    row_bytes = 2 * power_of_two(head_size) * q.element_size()
    while stages > 1 and row_bytes * (at_once + stages * width) > SHARED_BYTES:
        stages -= 1
    while at_once > 32 and row_bytes * (at_once + stages * width) > SHARED_BYTES:
        at_once, width = at_once // 2, max(16, width // 2)
    at_once = max(at_once, picked)
    tiles = -(-query_blocks * picked // at_once)
    variant(
        block_score_kernel,
        rows=geometry.rows,
        tiles=tiles,
        query_blocks=query_blocks,
        key_blocks=key_blocks,
        segment_keys=geometry.keys,
    )[(tiles * batch * heads,)](
        q,
        out if table is None else table,
        features,
        out if sinks is None else sinks,
        geometry.first_keys,
        out,
        *q.stride(),
        heads,
        heads // k.shape[1],
        batch * heads,
        tiles,
        first,
        geometry.rows,
        query_blocks,
        key_blocks,
        geometry.position,
        geometry.keys,
        scale,
        softcap or 0.0,
        LEAST=LEAST_SCORE,
        BLOCK_Q=geometry.block_q,
        BLOCK_K=geometry.block_k,
        PICKED=picked,
        ROWS=at_once,
        N=width,
        SOFTCAP=bool(softcap),
        SINKS=sinks is not None,
        INDIRECT=table is not None,
        STAGES=stages,
        **product_constants(q),
        num_warps=warps,
    )
    return out


def block_features(k: torch.Tensor, geometry: SegmentGeometry, table: torch.Tensor | None) -> torch.Tensor:
    """Mean and VARIANCE_WEIGHT / 2 times variance of each KV block's real keys: [B, Hkv, N, 2 D] in the type of k."""
    from routesparse.kernels.block_score.kernel import block_features_kernel

    batch, kv_heads, _, head_size = k.shape
    blocks = geometry.key_blocks
    out = torch.empty(batch, kv_heads, blocks, 2 * head_size, dtype=k.dtype, device=k.device)
    variant(block_features_kernel, keys=geometry.keys, key_blocks=blocks)[(blocks, batch * kv_heads)](
        k,
        out if table is None else table,
        geometry.first_keys,
        out,
        *k.stride(),
        kv_heads,
        geometry.keys,
        blocks,
        WEIGHT=0.5 * VARIANCE_WEIGHT,
        MOST=torch.finfo(k.dtype).max,
        BLOCK=geometry.block_k,
        HEAD=head_size,
        HEAD_PADDED=power_of_two(head_size),
        INDIRECT=table is not None,
        num_warps=4,
    )
    return out
