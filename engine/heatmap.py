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

from routesparse.engine.probe import BOUNDARY, RECENT, ROUTING, Probe
from routesparse.engine.readout import Readout
from routesparse.engine.segments import Segment

if TYPE_CHECKING:
    from routesparse.engine.decision import Decision

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


@dataclass(frozen=True)
class PendingHeatmaps:
    """Pictures of U units on their way to the host; kinds uint8 [rows] are the same for all."""

    readout: Readout
    kinds: np.ndarray
    pool: int

    def read(self) -> tuple[Heatmap, ...]:
        """One picture per unit, rows sorted by position."""
        values = self.readout.numpy()
        pictures = []
        for mass, positions in zip(values["mass"], values["positions"], strict=True):
            order = np.argsort(positions, kind="stable")
            pictures.append(Heatmap(positions[order], self.kinds[order], mass[order], self.pool))
        return tuple(pictures)


def draw(probe: Probe, segment: Segment) -> PendingHeatmaps:
    """One picture per unit of the probe."""
    rows, kinds = [], []
    for kind, step in ((RECENT, RECENT_STEP), (ROUTING, 1), (BOUNDARY, 1)):
        part = probe.rows.slice_of(kind)
        rows.append(slice(part.start, part.stop, step))
        kinds.append(np.full(len(range(part.start, part.stop, step)), kind, np.uint8))
    pool = -(-segment.key_blocks // MAX_COLUMNS)
    mass = torch.cat([probe.block_mass[:, :, part] for part in rows], 2).half()
    if pool > 1:
        padded = F.pad(mass, (0, -mass.shape[-1] % pool))
        mass = padded.unflatten(-1, (-1, pool)).amax(-1)
    positions = torch.cat([probe.rows.rows[:, :, part] for part in rows], 2) + segment.position
    readout = Readout({"mass": mass.flatten(0, 1), "positions": positions.flatten(0, 1).int()})
    return PendingHeatmaps(readout, np.concatenate(kinds), pool)


def heatmaps(decision: Decision) -> tuple[Heatmap, ...]:
    """One picture per unit of a decision that still has its probe, rows sorted by position."""
    assert decision.probe is not None
    return draw(decision.probe, decision.segment).read()
