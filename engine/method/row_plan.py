"""Step 6: lower the chosen candidates to one row plan."""

from __future__ import annotations

import numpy as np
import torch

from routesparse.engine.device import device_path
from routesparse.engine.device.constants import constant
from routesparse.engine.method.families import NEVER, FamilyIndex
from routesparse.engine.method.inputs import first_real_keys
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import FAMILIES, Pattern
from routesparse.kernels import lower_triton
from routesparse.kernels.interface import RowPlan


def lower(
    segment: Segment,
    indices: dict[Pattern, FamilyIndex],
    candidates: tuple[Candidate, ...],
    choice: torch.Tensor | np.ndarray,
    key_start: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> RowPlan:
    """The row plan of one segment: choice int [B, H] holds candidate indices. Tail rows and dense heads are dense.

    Returns a RowPlan with n_q = segment.rows and n_k = segment.keys; on a GPU without reading the choice.
    """
    device = next(iter(indices.values())).levels.device
    choice = torch.as_tensor(choice, device=device)
    batch, heads = choice.shape
    if device_path.fused(choice):
        return _lower_fused(segment, indices, candidates, choice, key_start, softcap, sinks)
    families = list(indices)
    table = [(families.index(c.pattern) if c.pattern in indices else -1, c.level) for c in candidates]
    family, level = constant(np.array(table), device)[choice].unbind(-1)
    mask = torch.zeros(
        batch, heads, segment.query_blocks, segment.key_blocks, dtype=torch.bool, device=device
    )
    columns = column_count = None
    for place, index in enumerate(indices.values()):
        chosen = family == place
        if not chosen.any():
            continue
        kept = index.levels <= level.view(batch, heads, 1, 1)
        mask |= chosen.view(batch, heads, 1, 1) & kept & (index.levels != NEVER)
        if index.columns is not None:
            columns = index.columns
            counts = constant(np.array(index.column_counts), device)
            # Other families may have more levels than this one; their units take no columns.
            column_count = torch.where(chosen, counts[level.clamp_max(len(counts) - 1)], 0)
    rows = torch.arange(segment.query_blocks, device=device) >= segment.body_blocks
    return RowPlan.from_block_mask(
        mask,
        n_q=segment.rows,
        n_k=segment.keys,
        block_q=segment.block_q,
        block_k=segment.block_k,
        columns=columns,
        column_count=column_count,
        dense_rows=(family < 0).unsqueeze(-1) | rows,
        key_start=key_start,
        softcap=softcap,
        sinks=sinks,
    )


def _lower_fused(
    segment: Segment,
    indices: dict[Pattern, FamilyIndex],
    candidates: tuple[Candidate, ...],
    choice: torch.Tensor,
    key_start: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> RowPlan:
    """``lower`` by one kernel; a map that is missing (a baseline has one family) is never chosen."""
    some = next(iter(indices.values())).levels
    table = [(FAMILIES.index(c.pattern) if c.pattern in indices else -1, c.level) for c in candidates]
    maps = [indices[pattern].levels if pattern in indices else some for pattern in FAMILIES]
    slash = indices.get("vertical_slash")
    columns = torch.zeros(*choice.shape, 0, dtype=torch.int32, device=choice.device)
    if slash is not None and slash.columns is not None:
        columns = slash.columns_by_key
    return lower_triton.lower_levels(
        choice.long(),
        constant(np.array(table, dtype=np.int32), choice.device),
        (maps[0], maps[1], maps[2], maps[3]),
        columns,
        segment.place(first_real_keys(key_start, len(choice), choice.device)),
        key_start=key_start,
        softcap=softcap,
        sinks=sinks,
    )


def head_density(plan: RowPlan) -> torch.Tensor:
    """plan.head_density() of a lowered plan from its counts alone: float64 [B, H]; no host sync.

    A lowered row lists its diagonal, and its columns lie outside its blocks: what is not diagonal lies wholly before
    the row's first query. Only the block that holds the first real key is read in part.
    """
    start = first_real_keys(plan.key_start, plan.batch, plan.device)
    if device_path.fused(plan.block_count):
        return lower_triton.head_density(plan, start)
    start = start.view(-1, 1, 1)
    first, last = plan.query_positions()
    rows = last - first + 1

    def pairs_from(key: torch.Tensor) -> torch.Tensor:
        until, before = (last - key + 1).clamp_min(0), (first - key).clamp_min(0)
        return (until * (until + 1) - before * (before + 1)) // 2

    edge = first // plan.block_k
    diagonal = (last // plan.block_k - torch.maximum(edge, start // plan.block_k) + 1).clamp_min(0)
    inside = pairs_from(torch.maximum(edge * plan.block_k, start))
    # The lowered rows always list the sink block, whose keys before the first real one are hidden.
    hidden = torch.where(start // plan.block_k < edge, start % plan.block_k, 0)
    before = (plan.block_count - diagonal) * plan.block_k - hidden + plan.column_count
    everything = pairs_from(start)
    kept = torch.where(plan.dense_rows, everything, before * rows + inside).sum(-1).double()
    return kept / everything.sum(-1).clamp_min(1)
