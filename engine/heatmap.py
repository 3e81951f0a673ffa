"""Probe pictures for people: block mass of a unit's probe rows, float16, max-pooled along keys where large.

Max-pooling keeps verticals and slashes that a mean would wash out. The certificate rows are left out and a quarter
of the recent rows is kept: a picture needs no census.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import numpy as np
import torch
import torch.nn.functional as F

from routesparse.engine.probe import BOUNDARY, RECENT, ROUTING

if TYPE_CHECKING:
    from routesparse.engine.layer import Decision

MAX_COLUMNS = 1_024
RECENT_STEP = 4


@dataclass(frozen=True)
class Heatmap:
    """positions int32 [rows], kinds uint8 [rows], mass float16 [rows, columns]; ``pool`` KV blocks per column."""

    positions: np.ndarray
    kinds: np.ndarray
    mass: np.ndarray
    pool: int

    def pooled(self, factor: int) -> Heatmap:
        """The same picture with ``factor`` times fewer columns, by maximum."""
        if factor <= 1:
            return self
        padded = np.pad(self.mass, ((0, 0), (0, -self.mass.shape[1] % factor)))
        mass = padded.reshape(len(padded), -1, factor).max(-1)
        return Heatmap(self.positions, self.kinds, mass, self.pool * factor)


def heatmaps(decision: Decision) -> tuple[Heatmap, ...]:
    """One picture per unit of the decision, rows sorted by position."""
    probe, segment = decision.probe, decision.segment
    place, kinds = [], []
    for kind, step in ((RECENT, RECENT_STEP), (ROUTING, 1), (BOUNDARY, 1)):
        part = probe.rows.slice_of(kind)
        chosen = np.arange(part.start, part.stop, step)
        place.append(chosen)
        kinds.append(np.full(len(chosen), kind, np.uint8))
    index = torch.as_tensor(np.concatenate(place), device=probe.block_mass.device)
    kind_of = np.concatenate(kinds)
    pool = -(-segment.key_blocks // MAX_COLUMNS)
    mass = probe.block_mass[:, :, index]
    if pool > 1:
        padded = F.pad(mass, (0, -mass.shape[-1] % pool))
        mass = padded.unflatten(-1, (-1, pool)).amax(-1)
    values = mass.flatten(0, 1).half().cpu().numpy()
    positions = (probe.rows.rows[:, :, index] + segment.position).flatten(0, 1).int().cpu().numpy()
    pictures = []
    for unit in range(len(values)):
        order = np.argsort(positions[unit], kind="stable")
        pictures.append(Heatmap(positions[unit][order], kind_of[order], values[unit][order], pool))
    return tuple(pictures)
