"""Probe pictures for people: block mass of a unit's probe rows, float16, max-pooled along keys where large.

Max-pooling keeps verticals and slashes that a mean would wash out. The certificate rows are left out and a quarter
of the recent rows is kept: a picture needs no census. Beside the mass stands what each budget reads (probe_masks.py).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
import torch

from routesparse.engine import probe_masks
from routesparse.engine.device.constants import constant
from routesparse.engine.device.copies import Copies
from routesparse.engine.method.families import family_maps
from routesparse.engine.method.records import BOUNDARY, RECENT, ROUTING, FamilyIndex, Probe
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import Pattern
from routesparse.kernels.pictures import pictures

MAX_COLUMNS = 1_024
RECENT_STEP = 4


@dataclass(frozen=True)
class Heatmap:
    """positions int32 [rows], kinds uint8 [rows], mass float16 [rows, columns]; ``pool`` KV blocks per column.

    masks uint8 [bytes of a cell, rows, mask_columns], packed as in engine/probe_masks.py; ``mask_pool`` KV blocks a
    column of theirs.
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
        rows = self.positions[::row_step], self.kinds[::row_step]
        coarse = padded.reshape(len(padded), -1, factor).max(-1)
        masks = probe_masks.pooled(self.masks[:, ::row_step], coarser)
        return Heatmap(*rows, coarse, self.pool * factor, masks, self.mask_pool * coarser)


@dataclass(frozen=True)
class Pictures:
    """Pictures of U units on the device, or on their way to the host (``leave``).

    tensors: mass float16 [U, rows, columns], positions int32 [U, rows] and packed masks; kinds uint8 [rows] are the
    same for all units.
    """

    tensors: Mapping[str, torch.Tensor]
    kinds: np.ndarray
    pool: int
    mask_pool: int
    copies: Copies | None = None

    def leave(self, copies: Copies | None = None) -> Pictures:
        """Send them on their way to the host. copies: has them already, by their names."""
        return replace(self, tensors={}, copies=copies or Copies(self.tensors))

    def read(self) -> tuple[Heatmap, ...]:
        """One picture per unit, rows sorted by position, once they have arrived."""
        assert self.copies is not None
        values = self.copies.numpy()
        found = []
        for mass, positions, kept in zip(values["mass"], values["positions"], values["masks"], strict=True):
            order = np.argsort(positions, kind="stable")
            place = positions[order], self.kinds[order], mass[order], self.pool
            found.append(Heatmap(*place, kept[:, order], self.mask_pool))
        return tuple(found)


def draw(probe: Probe, segment: Segment, indices: Mapping[Pattern, FamilyIndex]) -> Pictures:
    """One picture per unit of the probe, with what the budgets of each family read."""
    parts, kinds = [], []
    for kind, step in ((RECENT, RECENT_STEP), (ROUTING, 1), (BOUNDARY, 1)):
        part = probe.rows.slice_of(kind)
        parts.append(np.arange(part.start, part.stop, step))
        kinds.append(np.full(len(parts[-1]), kind, np.uint8))
    drawn = constant(np.concatenate(parts), probe.block_mass.device)
    pool = -(-segment.key_blocks // MAX_COLUMNS)
    mask_pool = pool * math.ceil(math.ceil(segment.key_blocks / pool) / probe_masks.MAX_COLUMNS)
    mass, packed, positions = pictures(
        probe.block_mass,
        probe.rows.rows,
        drawn,
        family_maps(indices),
        position=segment.position,
        block_q=segment.block_q,
        block_k=segment.block_k,
        pool=pool,
        mask_pool=mask_pool,
        last=probe_masks.NEVER,
    )
    tensors = {"mass": mass, "positions": positions, "masks": packed}
    return Pictures(tensors, np.concatenate(kinds), pool, mask_pool)
