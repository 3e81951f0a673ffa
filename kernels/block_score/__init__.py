"""Block scores (METHOD 13.2): what share of a query block's rows each KV block holds, estimated without reading keys.

Some rows of each query block, half of them those that stand out, meet descriptions of each KV block: mean and variance
of one or two clusters of its keys. The logit of row q and a cluster is that of a key drawn from a normal distribution
of this mean and variance,

    scale q . mean + VARIANCE_WEIGHT / 2 sum_d (scale q_d)^2 var_d + ln(keys of the cluster),

where the variance counts a little less than it would for normal keys. A softmax over the KV blocks that start at or
before the row gives shares, and the score is their root mean square over the rows: a mean would let one row in a
hundred lose all that it reads. The softmax's normaliser samples tiles of KV blocks far from both ends.
"""

from __future__ import annotations

import torch

from routesparse.kernels.block_score import hopper_launch, naive
from routesparse.kernels.block_score.naive import ALIGNED_QUERY_BLOCKS, LEAST_SCORE, TILE
from routesparse.kernels.common import dispatched, launch, power_of_two
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits
from routesparse.kernels.rules import NORMALISER_STEP, VARIANCE_WEIGHT

__all__ = ["LEAST_SCORE", "block_score"]

# Rows and descriptions of a product, warps, stages; as measured on an H200. Heads of at most SMALL_HEAD leave room in
# shared memory for a second program, which computes while the first one waits.
LAUNCH, SMALL_HEAD_WARPS, SMALL_HEAD = (128, 64, 8, 3), 4, 64
# Shared memory of smaller GPUs, for a program's rows, their squares and the stages of descriptions.
SHARED_BYTES = 163_840
FEATURE_WARPS, SMALL_FEATURE_WARPS = 2, 1  # the latter for two clusters of a small head
ROW_WARPS, ROW_PIECE = 2, 64
PAIRED = 16  # descriptions of eight KV blocks that are two clusters each


@dispatched(naive.block_score)
def block_score(
    logits: Logits, first: int, geometry: SegmentGeometry, *, rows: int, clusters: int
) -> torch.Tensor:
    """See the naive twin. Errors: ValueError unless rows is a power of two, at least 2."""
    from routesparse.kernels.block_score.kernel import block_score_kernel

    if rows & (rows - 1) or rows < 2:
        raise ValueError(f"{rows} rows of a query block; the kernel takes a power of two from 2 on")
    q = logits.q
    batch, heads, _, head_size = q.shape
    query_blocks = geometry.query_blocks
    chosen = scored_rows(logits, first, geometry, rows)
    picked = chosen.shape[-1]
    features, counts = descriptions(logits, geometry, clusters)
    out = torch.empty(batch, heads, query_blocks, geometry.key_blocks, dtype=torch.float16, device=q.device)
    common = {
        "picked_ptr": chosen,
        "count_ptr": counts,
        "out_ptr": out,
        "units": batch * heads,
        "first": first,
    }
    common |= {"LEAST": LEAST_SCORE, "STEP": NORMALISER_STEP}
    if hopper_launch.can_run(logits, picked, clusters):
        hopper_launch.launch_scores(logits, geometry, features, common)
        return out
    at_once, width, warps, stages = LAUNCH
    if head_size <= SMALL_HEAD:
        warps = min(warps, SMALL_HEAD_WARPS)
    row_bytes = 2 * power_of_two(head_size) * q.element_size()
    while stages > 1 and row_bytes * (at_once + stages * width) > SHARED_BYTES:
        stages -= 1
    while at_once > 32 and row_bytes * (at_once + stages * width) > SHARED_BYTES:
        at_once, width = at_once // 2, max(16, width // 2)
    at_once = min(max(at_once, picked), ALIGNED_QUERY_BLOCKS * picked)
    tiles = -(-query_blocks * picked // at_once)
    launch(
        block_score_kernel,
        (tiles * batch * heads,),
        logits.arguments(),
        geometry.arguments(),
        common,
        lengths=("tiles", "described"),
        features=features,
        tiles=tiles,
        described=counts.shape[-1],
        PICKED=picked,
        ROWS=at_once,
        N=width,
        TILE=TILE,
        ALIGNED=ALIGNED_QUERY_BLOCKS,
        CLUSTERS=clusters,
        STAGES=stages,
        num_warps=warps,
    )
    return out


def scored_rows(logits: Logits, first: int, geometry: SegmentGeometry, rows: int) -> torch.Tensor:
    """The rows of each query block that are scored, in order: int32 [B, H, M, R]."""
    from routesparse.kernels.block_score.kernel import row_distances_kernel, scored_rows_kernel

    batch, heads, _, head_size = logits.q.shape
    blocks, picked = geometry.query_blocks, min(rows, geometry.block_q)
    shape, device = (batch, heads, blocks), logits.q.device
    distance = torch.empty(*shape, geometry.block_q, dtype=torch.float32, device=device)
    launch(
        row_distances_kernel,
        (batch * heads, blocks),
        logits.arguments(),
        geometry.arguments(),
        out=distance,
        first=first,
        PIECE=min(ROW_PIECE, power_of_two(head_size)),
        num_warps=ROW_WARPS,
    )
    out = torch.empty(*shape, picked, dtype=torch.int32, device=device)
    launch(
        scored_rows_kernel,
        (blocks, batch * heads),
        geometry.arguments(),
        distance=distance,
        out=out,
        PICKED=picked,
        num_warps=1,
    )
    return out


def descriptions(
    logits: Logits, geometry: SegmentGeometry, clusters: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Features [B, Hkv, descriptions, 2 D] in the type of k; log2(keys / block_k), float32 [B, Hkv, descriptions].

    Of two clusters those of eight KV blocks lie together: eight first ones, then eight second ones.
    """
    from routesparse.kernels.block_score.kernel import block_features_kernel

    k = logits.k
    batch, kv_heads, _, head_size = k.shape
    blocks = geometry.key_blocks
    count = blocks if clusters == 1 else -(-2 * blocks // PAIRED) * PAIRED
    out = torch.empty(batch, kv_heads, count, 2 * head_size, dtype=k.dtype, device=k.device)
    counts = torch.empty(batch, kv_heads, count, dtype=torch.float32, device=k.device)
    launch(
        block_features_kernel,
        (count // clusters, batch * kv_heads),
        logits.arguments(),
        lengths=("described",),
        first_key=geometry.first_keys,
        out=out,
        count=counts,
        keys=geometry.keys,
        described=count,
        WEIGHT=0.5 * VARIANCE_WEIGHT,
        MOST=torch.finfo(k.dtype).max,
        BLOCK=geometry.block_k,
        CLUSTERS=clusters,
        num_warps=SMALL_FEATURE_WARPS if clusters == 2 and head_size <= SMALL_HEAD else FEATURE_WARPS,
    )
    return out, counts
