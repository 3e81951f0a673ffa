"""Probe pictures for people: block mass of a unit's probe rows, float16, max-pooled along keys where large.

Max-pooling keeps verticals and slashes that a mean would wash out. The certificate rows are left out and a quarter
of the recent rows is kept: a picture needs no census. Beside the mass stands what each budget reads (masks.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.device import device_path
from routesparse.engine.device.constants import constant
from routesparse.engine.device.copies import Copies
from routesparse.engine.method.families import NEVER, FamilyIndex
from routesparse.engine.method.probe import Probe
from routesparse.engine.method.probe_rows import BOUNDARY, RECENT, ROUTING
from routesparse.engine.method.segments import Segment
from routesparse.engine.record import masks
from routesparse.engine.rows import FAMILIES, Pattern
from routesparse.kernels import record_triton

if TYPE_CHECKING:
    from routesparse.engine.decide.decision import Decision

MAX_COLUMNS = 1_024
RECENT_STEP = 4


@dataclass(frozen=True)
class Heatmap:
    """positions int32 [rows], kinds uint8 [rows], mass float16 [rows, columns]; ``pool`` KV blocks per column.

    masks uint8 [2, rows, mask_columns], packed as in record/masks.py; ``mask_pool`` KV blocks per column of theirs.
    """

    positions: np.ndarray
    kinds: np.ndarray
    mass: np.ndarray
    pool: int
    masks: np.ndarray
    mask_pool: int

    def reduced(self, row_step: int, factor: int) -> Heatmap:
        """Every ``row_step``-th row and ``factor`` times fewer columns, by maximum; masks no finer than the mass."""
        if row_step == factor == 1:
            return self
        mass = self.mass[::row_step]
        padded = np.pad(mass, ((0, 0), (0, -mass.shape[1] % factor)))
        coarser = -(-self.pool * factor // self.mask_pool)
        return Heatmap(
            self.positions[::row_step],
            self.kinds[::row_step],
            padded.reshape(len(padded), -1, factor).max(-1),
            self.pool * factor,
            masks.pooled(self.masks[:, ::row_step], coarser),
            self.mask_pool * coarser,
        )


@dataclass(frozen=True)
class PendingHeatmaps:
    """Pictures of U units on their way to the host; kinds uint8 [rows] are the same for all."""

    copies: Copies
    kinds: np.ndarray
    pool: int
    mask_pool: int

    def read(self) -> tuple[Heatmap, ...]:
        """One picture per unit, rows sorted by position."""
        values = self.copies.numpy()
        pictures = []
        for mass, positions, kept in zip(values["mass"], values["positions"], values["masks"], strict=True):
            order = np.argsort(positions, kind="stable")
            place = positions[order], self.kinds[order], mass[order], self.pool
            pictures.append(Heatmap(*place, kept[:, order], self.mask_pool))
        return tuple(pictures)


@dataclass(frozen=True)
class Drawing:
    """Pictures of U units on the device: mass float16 [U, rows, columns], positions int32 [U, rows], packed masks."""

    tensors: dict[str, torch.Tensor]
    kinds: np.ndarray
    pool: int
    mask_pool: int

    def leave(self) -> PendingHeatmaps:
        """On their way to the host."""
        return PendingHeatmaps(Copies(self.tensors), self.kinds, self.pool, self.mask_pool)


def draw(probe: Probe, segment: Segment, indices: Mapping[Pattern, FamilyIndex]) -> Drawing:
    """One picture per unit of the probe, with what the budgets of each family read."""
    parts, kinds = [], []
    for kind, step in ((RECENT, RECENT_STEP), (ROUTING, 1), (BOUNDARY, 1)):
        part = probe.rows.slice_of(kind)
        parts.append(np.arange(part.start, part.stop, step))
        kinds.append(np.full(len(parts[-1]), kind, np.uint8))
    drawn = constant(np.concatenate(parts), probe.block_mass.device)
    pool = -(-segment.key_blocks // MAX_COLUMNS)
    mask_pool = pool * math.ceil(math.ceil(segment.key_blocks / pool) / masks.MAX_COLUMNS)
    families = [indices[family] for family in FAMILIES]
    if device_path.fused(probe.block_mass):
        mass, packed, positions = record_triton.pictures(
            probe.block_mass,
            probe.rows.rows,
            drawn,
            (families[0].levels, families[1].levels, families[2].levels, families[3].levels),
            _single_levels(families[1], segment),
            position=segment.position,
            block_q=segment.block_q,
            block_k=segment.block_k,
            pool=pool,
            mask_pool=mask_pool,
            last=masks.NEVER,
        )
    else:
        rows = probe.rows.rows.index_select(2, drawn)
        mass = probe.block_mass.index_select(2, drawn).half().flatten(0, 1)
        mass = F.pad(mass, (0, -mass.shape[-1] % pool)).unflatten(-1, (-1, pool)).amax(-1)
        levels = [_levels(index, segment, rows, mask_pool).flatten(0, 1) for index in families]
        packed = torch.stack([levels[0] | levels[1] << 4, levels[2] | levels[3] << 4], 1)
        positions = (rows + segment.position).flatten(0, 1).int()
    tensors = {"mass": mass, "positions": positions, "masks": packed}
    return Drawing(tensors, np.concatenate(kinds), pool, mask_pool)


def heatmaps(decision: Decision) -> tuple[Heatmap, ...]:
    """One picture per unit of a decision that still has its probe, rows sorted by position."""
    assert decision.probe is not None
    return draw(decision.probe, decision.segment, decision.indices).leave().read()


def _levels(index: FamilyIndex, segment: Segment, rows: torch.Tensor, pool: int) -> torch.Tensor:
    """The family's level map seen from rows [B, H, P], ``pool`` KV blocks per column: uint8 [B, H, P, columns]."""
    batch, heads, _ = rows.shape
    blocks = index.levels.shape[-1]
    query_block = (rows // segment.block_q).unsqueeze(-1).expand(-1, -1, -1, blocks)
    levels = index.levels.expand(batch, heads, -1, -1).gather(2, query_block)
    if index.columns is not None:
        # A block of which only single columns are read counts from their smallest level on.
        levels = torch.minimum(levels, _single_levels(index, segment).unsqueeze(2))
    reach = (rows + segment.position).unsqueeze(-1) // segment.block_k
    levels = levels.masked_fill(torch.arange(blocks, device=rows.device) > reach, NEVER)
    padded = F.pad(levels, (0, -blocks % pool), value=NEVER)
    return padded.unflatten(-1, (-1, pool)).amin(-1).clamp_max(masks.NEVER)


def _single_levels(index: FamilyIndex, segment: Segment) -> torch.Tensor:
    """The smallest level that reads a column of each KV block singly: uint8 [B, H, N]."""
    assert index.columns is not None
    if device_path.fused(index.columns):
        counts = constant(np.array(index.column_counts, np.int32), index.columns.device)
        return record_triton.single_levels(index.columns, counts, segment.key_blocks, segment.block_k)
    single = index.levels.new_full((*index.columns.shape[:2], segment.key_blocks), NEVER)
    of_column = index.column_levels.expand(index.columns.shape)
    return single.scatter_reduce_(-1, index.columns // segment.block_k, of_column, "amin")
