"""Block-sparse: per query block, the KV blocks with the highest pooled score (paper section 3.1, MInference).

Two budgets share one ranking: a fixed number of blocks a row (top-k), and, one more than the paper, as many blocks
as reach a share of the row's cumulative score (top-p), because one number for all rows is dear on diffuse inputs.
"""

from __future__ import annotations

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.device.constants import constant
from routesparse.engine.method.families.level_map import NEVER, FamilyIndex
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.probe import pool_keys
from routesparse.engine.method.segments import Segment
from routesparse.kernels import index_triton, probe_triton


def pooled_scores(
    inputs: AttentionInputs, segment: Segment, forced: torch.Tensor, causal: torch.Tensor
) -> torch.Tensor:
    """Mean query of each query block x mean key of each KV block, scaled: [B, H, M, N] float32.

    Forced blocks are +inf, blocks outside ``causal`` -inf.
    """
    queries = inputs.q[:, :, segment.first : segment.first + segment.rows].float()
    padded = F.pad(queries, (0, 0, 0, -segment.rows % segment.block_q))
    sums = padded.unflatten(2, (segment.query_blocks, segment.block_q)).sum(3)
    counts = torch.full((segment.query_blocks, 1), segment.block_q, device=sums.device)
    counts[-1] = segment.rows - (segment.query_blocks - 1) * segment.block_q
    means = (sums / counts).unflatten(1, (-1, inputs.groups))
    keys = pool_keys(inputs, segment)
    scores = torch.einsum("bkgmd,bknd->bkgmn", means, keys).flatten(1, 2) * inputs.scale
    if inputs.softcap:
        scores = inputs.softcap * torch.tanh(scores / inputs.softcap)
    return scores.masked_fill_(forced, torch.inf).masked_fill_(~causal, -torch.inf)


def build(scores: torch.Tensor, causal: torch.Tensor, budgets: list[Candidate]) -> FamilyIndex:
    """Level l keeps the ``budgets[l].blocks`` best blocks of each query block, forced ones first."""
    rank = _ranks(scores)
    levels = torch.full(scores.shape, NEVER, dtype=torch.uint8, device=scores.device)
    for level in reversed(range(len(budgets))):
        levels.masked_fill_(rank < budgets[level].blocks, level)
    levels.masked_fill_(scores == torch.inf, 0).masked_fill_(~causal, NEVER)
    return FamilyIndex("block_sparse", levels)


def build_top_p(scores: torch.Tensor, causal: torch.Tensor, budgets: list[Candidate]) -> FamilyIndex:
    """Level l keeps the best blocks until their softmax weights reach ``budgets[l].share``, forced ones besides.

    A block belongs to a level while the weight of the better ones is below the share.
    """
    open_scores = scores.masked_fill(scores == torch.inf, -torch.inf)
    best = open_scores.amax(-1, keepdim=True).nan_to_num_(neginf=0.0)
    weight = (open_scores - best).exp_()
    ordered, order = weight.sort(dim=-1, descending=True, stable=True)
    before = (ordered.cumsum(-1) - ordered) / ordered.sum(-1, keepdim=True).clamp_min(1e-30)
    ordered_levels = torch.full(scores.shape, NEVER, dtype=torch.uint8, device=scores.device)
    for level in reversed(range(len(budgets))):
        ordered_levels.masked_fill_(before < budgets[level].share, level)
    levels = torch.empty_like(ordered_levels).scatter_(-1, order, ordered_levels)
    levels.masked_fill_(scores == torch.inf, 0).masked_fill_(~causal, NEVER)
    return FamilyIndex("block_top_p", levels)


def build_fused(
    inputs: AttentionInputs, segment: Segment, budgets: list[Candidate], shares: list[Candidate]
) -> tuple[FamilyIndex, FamilyIndex]:
    """Both families by the kernels: budgets end at edges of score bins instead of at single ranks."""
    device = inputs.q.device
    means = probe_triton.block_means(
        inputs.q, segment.first, segment.rows, segment.block_q, table=inputs.table
    )
    keys = pool_keys(inputs, segment).half()
    # Scaled before they are rounded: a half holds no unscaled product of large activations.
    grouped = (means * inputs.scale).half().unflatten(1, (-1, inputs.groups)).flatten(2, 3)
    scores = (grouped @ keys.transpose(-1, -2)).view(*means.shape[:3], segment.key_blocks)
    top_k, top_p, top_k_count, top_p_count = index_triton.score_levels(
        scores,
        segment.place(inputs.first_keys()),
        constant(np.array([c.blocks for c in budgets], dtype=np.int32), device),
        constant(np.array([c.share for c in shares], dtype=np.float32), device),
        inputs.softcap,
    )
    return (
        FamilyIndex("block_sparse", top_k, row_counts=top_k_count),
        FamilyIndex("block_top_p", top_p, row_counts=top_p_count),
    )


def _ranks(scores: torch.Tensor) -> torch.Tensor:
    """The rank of each block in its row, 0 best, ties by position: int64, the shape of scores."""
    order = scores.argsort(dim=-1, descending=True, stable=True)
    place = torch.arange(scores.shape[-1], device=scores.device).expand_as(order)
    return torch.empty_like(order).scatter_(-1, order, place)
