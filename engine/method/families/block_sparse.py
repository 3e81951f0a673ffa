"""Block-sparse: per query block, the KV blocks with the highest pooled score (paper section 3.1, MInference).

Two budgets share one ranking: a fixed number of blocks a row (top-k), and, one more than the paper, as many blocks
as reach a share of the row's cumulative score (top-p), because one number for all rows is dear on diffuse inputs.
Budgets end at edges of score bins (``kernels/level_maps``).
"""

from __future__ import annotations

import numpy as np
import torch

from routesparse.engine.device.constants import constant
from routesparse.engine.method.families.level_map import FamilyIndex
from routesparse.engine.method.inputs import AttentionInputs, pool_keys
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.segments import Segment
from routesparse.kernels.block_means import block_means, pooled_scores
from routesparse.kernels.level_maps import score_levels


def block_scores(inputs: AttentionInputs, segment: Segment) -> torch.Tensor:
    """Mean query of each query block x mean key of each KV block, scaled, before a soft cap: float16 [B, H, M, N]."""
    queries = block_means(inputs.q, segment.first, segment.rows, segment.block_q, table=inputs.table)
    return pooled_scores(queries, pool_keys(inputs, segment), inputs.scale)


def build(
    inputs: AttentionInputs, segment: Segment, budgets: list[Candidate], shares: list[Candidate]
) -> tuple[FamilyIndex, FamilyIndex]:
    """Top-k: level l keeps ``budgets[l].blocks`` blocks of each query block, forced ones among them; top-p: the best
    blocks until their softmax weights reach ``shares[l].share``, forced ones besides.
    """
    device = inputs.q.device
    top_k, top_p, top_k_count, top_p_count = score_levels(
        block_scores(inputs, segment),
        segment.geometry(inputs.first_keys()),
        constant(np.array([c.blocks for c in budgets], dtype=np.int32), device),
        constant(np.array([c.share for c in shares], dtype=np.float32), device),
        inputs.softcap,
    )
    return (
        FamilyIndex("block_sparse", top_k, row_counts=top_k_count),
        FamilyIndex("block_top_p", top_p, row_counts=top_p_count),
    )
