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
from routesparse.engine.rows import Pattern
from routesparse.kernels.retained_mass import RankedColumns

COLUMN_LEVELS = 8  # three bits beside a column's key hold its level


@dataclass(frozen=True)
class FamilyIndex:
    """One family's nested budgets. B and H may be 1 where the family does not depend on them.

    levels: uint8 [B, H, M, N] (``kernels.level_maps``); columns: int64 [B, H, V] best first, or None, of which
    column_counts[level] belong to a level; row_counts: int32 [B, H, M, levels], blocks that each query block reads at
    each level, where the builder knows them.
    """

    pattern: Pattern
    levels: torch.Tensor
    columns: torch.Tensor | None = None
    column_counts: tuple[int, ...] = ()
    row_counts: torch.Tensor | None = None

    @cached_property
    def ranked_columns(self) -> RankedColumns | None:
        """The columns as the operations read them; None where the family has none.

        Scoring asks first, inside of what a graph captures, so that a replay renews it with the rest.
        Errors: ValueError for more than COLUMN_LEVELS levels.
        """
        if self.columns is None:
            return None
        if len(self.column_counts) > COLUMN_LEVELS:
            raise ValueError(f"{len(self.column_counts)} levels of columns; {COLUMN_LEVELS} at most")
        device = self.columns.device
        counts = np.array(self.column_counts, np.int32)
        of_rank = np.searchsorted(counts, np.arange(self.columns.shape[-1]), side="right").astype(np.uint8)
        levels = constant(of_rank, device)
        by_key = torch.add(levels.int(), self.columns.int(), alpha=COLUMN_LEVELS).sort(-1).values
        return RankedColumns(self.columns, levels, constant(counts, device), by_key)
