"""The shape that all pattern families share: a level map of KV blocks, and (vertical-slash only) ranked columns.

A level map holds for every query block and KV block the smallest budget, counted from 0, that reads the KV block. The
paper builds indices for each (pattern, budget); one map holds all budgets of a family, because they are nested. So
one gather scores every budget on the probe rows, one product counts their tiles, and one comparison lowers any of them
to a row plan.
"""

from __future__ import annotations

from dataclasses import dataclass
from functools import cached_property

import numpy as np
import torch

from routesparse.engine.device.constants import constant
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.segments import LOCAL_BLOCKS, Segment
from routesparse.engine.rows import Pattern

NEVER = 255  # no budget of the family reads this block


@dataclass(frozen=True)
class FamilyIndex:
    """One family's nested budgets. B and H may be 1 where the family does not depend on them.

    levels: uint8 [B, H, M, N]; blocks beyond the diagonal are NEVER.
    columns: int64 [B, H, V] best first, or None. column_counts[level] of them belong to a level.
    """

    pattern: Pattern
    levels: torch.Tensor
    columns: torch.Tensor | None = None
    column_counts: tuple[int, ...] = ()
    row_counts: torch.Tensor | None = None  # int32 [B, H, M, levels]: blocks that each row reads, where known

    @property
    def column_levels(self) -> torch.Tensor:
        """uint8 [V]: the smallest level that holds the column of each rank."""
        assert self.columns is not None
        rank = np.arange(self.columns.shape[-1])
        levels = np.searchsorted(np.array(self.column_counts), rank, side="right")
        return constant(levels.astype(np.uint8), self.columns.device)

    @cached_property
    def columns_by_key(self) -> torch.Tensor:
        """int32 [B, H, V]: 8 times the key plus the smallest level that holds the column, ascending.

        Scoring asks first, inside what a graph captures, so that a replay renews it with the rest.
        """
        assert self.columns is not None
        if len(self.column_counts) > 8:
            raise ValueError(f"{len(self.column_counts)} levels of columns; 3 bits hold 8")
        return torch.add(self.column_levels.int(), self.columns.int(), alpha=8).sort(-1).values


def diagonal_and_sink(segment: Segment, inputs: AttentionInputs) -> tuple[torch.Tensor, torch.Tensor]:
    """(forced, causal), bool [B, 1, M, N]: blocks that every plan reads, and blocks at or before the diagonal.

    Forced are the sink block, the diagonal blocks and LOCAL_BLOCKS before them.
    With left padding the sink block is the one that holds the prompt's first real key; blocks before it are
    outside ``causal`` too.
    """
    device = inputs.q.device
    base = constant(segment.base_blocks(), device).view(1, 1, -1, 1)
    last = constant(segment.last_blocks(), device).view(1, 1, -1, 1)
    sink = (inputs.first_keys() // segment.block_k).view(-1, 1, 1, 1)
    block = torch.arange(segment.key_blocks, device=device).view(1, 1, 1, -1)
    causal = (block <= last) & (block >= sink)
    return ((block == sink) | (block >= base - LOCAL_BLOCKS)) & causal, causal
