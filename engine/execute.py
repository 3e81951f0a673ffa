"""Step 6: lower the chosen candidates to one row plan and run it."""

from __future__ import annotations

import numpy as np
import torch

from routesparse.engine.builders import NEVER, FamilyIndex
from routesparse.engine.patterns import Candidate
from routesparse.engine.records import Pattern
from routesparse.engine.segments import Segment
from routesparse.kernels.interface import RowPlan


def lower(
    segment: Segment,
    indices: dict[Pattern, FamilyIndex],
    candidates: tuple[Candidate, ...],
    choice: np.ndarray,
    key_start: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> RowPlan:
    """The row plan of one segment: choice int [B, H] holds candidate indices. Tail rows and dense heads are dense.

    Returns a RowPlan with n_q = segment.rows and n_k = segment.keys.
    """
    batch, heads = choice.shape
    device = next(iter(indices.values())).levels.device
    patterns = np.array([c.pattern for c in candidates])[choice]
    level = torch.as_tensor(np.array([c.level for c in candidates])[choice], device=device)
    mask = torch.zeros(
        batch, heads, segment.query_blocks, segment.key_blocks, dtype=torch.bool, device=device
    )
    columns = column_count = None
    for pattern, index in indices.items():
        chosen = patterns == pattern
        if not chosen.any():
            continue
        which = torch.as_tensor(chosen, device=device).view(batch, heads, 1, 1)
        kept = index.levels <= level.view(batch, heads, 1, 1)
        mask |= which & kept & (index.levels != NEVER)
        if index.columns is not None:
            columns = index.columns
            counts = torch.as_tensor(index.column_counts, device=device)
            # Other families may have more levels than this one; their units take no columns.
            own = counts[level.clamp_max(len(counts) - 1)]
            column_count = torch.where(which.view(batch, heads), own, 0)
    dense = torch.as_tensor(patterns == "dense", device=device).view(batch, heads, 1)
    rows = torch.arange(segment.query_blocks, device=device) >= segment.body_blocks
    return RowPlan.from_block_mask(
        mask,
        n_q=segment.rows,
        n_k=segment.keys,
        block_q=segment.block_q,
        block_k=segment.block_k,
        columns=columns,
        column_count=column_count,
        dense_rows=dense | rows,
        key_start=key_start,
        softcap=softcap,
        sinks=sinks,
    )
