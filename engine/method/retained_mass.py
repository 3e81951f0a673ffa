"""m-hat of every candidate on every probe row, and what it would cost in tiles (paper section 3.2, step 2).

A row's mass under level b of a family is the block mass at blocks with level <= b, plus, for vertical-slash, the
mass of columns of level <= b whose block the row does not already read: exactly the mass of the plan that would
run, before the tail override. All budgets come from one pass over the family's level map.

No second pass over the keys is needed. The retained mass of a block pattern is a sum of block masses, and the probe's
first pass (a log-sum-exp per KV block of every probe row) holds these already. Only the recent rows (for columns and
diagonals) and the ranked columns are scored again.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from routesparse.engine.device import device_path
from routesparse.engine.device.constants import constant
from routesparse.engine.method.families import FamilyIndex
from routesparse.engine.method.families.level_map import diagonal_and_sink
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.probe import Probe, column_mass_of_rows
from routesparse.engine.method.probe_rows import BOUNDARY, RECENT, ROUTING
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import FAMILIES, Pattern
from routesparse.kernels import cover_triton


@dataclass(frozen=True)
class Coverage:
    """P probe rows, C candidates (dense last: mass 1)."""

    row_mass: torch.Tensor  # [B, H, P, C] float32 in [0, 1]
    tiles: torch.Tensor  # [B, H, C] float32, KV tiles read over the body's query blocks
    columns: torch.Tensor  # [B, H, C] float32, single columns read over the body's query blocks
    density: torch.Tensor  # [B, H, C] float32, kept share of the body's causal area, left padding aside

    def group_mean(self, probe: Probe, kind: int) -> torch.Tensor:
        """Mean mass over one group of probe rows: [B, H, C]."""
        return self.row_mass[:, :, probe.rows.slice_of(kind)].mean(2)

    def disagreement(self, probe: Probe) -> torch.Tensor:
        """u: standard deviation of the recent, routing and boundary groups' mean mass, [B, H, C]."""
        kinds = [k for k in (RECENT, ROUTING, BOUNDARY) if probe.rows.sizes[k]]
        return torch.stack([self.group_mean(probe, k) for k in kinds]).std(0, correction=0)


def cover(
    inputs: AttentionInputs,
    segment: Segment,
    probe: Probe,
    indices: dict[Pattern, FamilyIndex],
    candidates: tuple[Candidate, ...],
) -> Coverage:
    """Score every candidate on the probe rows and count its tiles, all heads of the layer at once."""
    if device_path.fused(inputs.q):
        return _cover_fused(inputs, segment, probe, indices, candidates)
    batch, heads, count, _ = probe.block_mass.shape
    shape = (batch, heads, len(candidates))
    row_mass = probe.block_mass.new_ones(batch, heads, count, len(candidates))
    query_block = probe.rows.rows // segment.block_q
    _, causal = diagonal_and_sink(segment, inputs)
    causal = causal[:, :, : segment.body_blocks].float()
    reach = causal.sum(2)
    every_block = causal.new_ones(1, segment.body_blocks)
    total = reach.sum(-1, keepdim=True).clamp_min(1.0)
    tiles = total.expand(shape).clone()
    columns = probe.lse.new_zeros(shape)

    for pattern, index in indices.items():
        levels = index.levels.expand(batch, heads, -1, -1)
        row_levels = _rows_of(levels, query_block)
        body = levels[:, :, : segment.body_blocks]
        column_rows = (
            _ColumnCoverage(inputs, segment, probe, index, row_levels) if index.columns is not None else None
        )
        for candidate in (c for c in candidates if c.pattern == pattern):
            mass = (probe.block_mass * (row_levels <= candidate.level)).sum(-1)
            # A product with ones counts much faster than a sum over booleans.
            read = (every_block @ (body <= candidate.level).float()).squeeze(2)
            if column_rows is not None:
                mass += column_rows.mass(candidate.level)
                columns[..., candidate.index] = column_rows.count(candidate.level, reach - read)
            row_mass[..., candidate.index] = (mass + probe.sink_mass).clamp_(0.0, 1.0)
            tiles[..., candidate.index] = read.sum(-1)
    density = (tiles + columns / segment.block_k) / total
    return Coverage(row_mass, tiles, columns, density.clamp_max(1.0))


def _cover_fused(
    inputs: AttentionInputs,
    segment: Segment,
    probe: Probe,
    indices: dict[Pattern, FamilyIndex],
    candidates: tuple[Candidate, ...],
) -> Coverage:
    """``cover`` by the kernels: all levels of all families in one pass over the masses."""
    families = [indices[pattern] for pattern in FAMILIES]
    depths = [sum(c.pattern == pattern for c in candidates) for pattern in FAMILIES]
    table = [
        (FAMILIES.index(c.pattern), c.level, c.blocks)
        if c.pattern in FAMILIES
        else (0, 0, segment.key_blocks)
        for c in candidates
    ]
    place = segment.place(inputs.first_keys())
    rows = probe.rows.rows
    columns = families[1].columns_by_key
    column_mass = cover_triton.column_mass(
        inputs.q,
        inputs.k,
        rows,
        probe.lse,
        columns,
        first_row=segment.first,
        position=segment.position,
        scale=inputs.scale,
        softcap=inputs.softcap,
        table=inputs.table,
    )
    row_mass = cover_triton.cover_rows(
        probe.block_mass,
        probe.sink_mass,
        rows,
        (families[0].levels, families[1].levels, families[2].levels, families[3].levels),
        (depths[0], depths[1], depths[2], depths[3]),
        columns,
        column_mass,
        _pooled_rows(probe) if probe.pooled else None,
        place,
    )
    tiles, single_columns, density = cover_triton.totals(
        constant(np.array(table, dtype=np.int32), inputs.q.device),
        families[1].levels,
        columns,
        _row_counts(families[2], depths[2]),
        _row_counts(families[3], depths[3]),
        place,
    ).unbind(0)
    return Coverage(row_mass, tiles, single_columns, density)


def _row_counts(index: FamilyIndex, depth: int) -> torch.Tensor:
    """int32 [B, H, M, levels]: blocks that each query block reads at each level."""
    if index.row_counts is not None:
        return index.row_counts
    return torch.stack([(index.levels <= level).sum(-1, dtype=torch.int32) for level in range(depth)], -1)


def _pooled_rows(probe: Probe) -> tuple[int, int, int]:
    """Start and end of the routing rows, start of the boundary rows: those of a pooled probe that know blocks only."""
    routing = probe.rows.slice_of(ROUTING)
    return routing.start, routing.stop, probe.rows.slice_of(BOUNDARY).start


def _rows_of(levels: torch.Tensor, query_block: torch.Tensor) -> torch.Tensor:
    """The level map's rows of the probe rows: levels [B, H, M, N], query_block [B, H, P] -> [B, H, P, N]."""
    batch, heads, count, _ = levels.shape
    unit = torch.arange(batch * heads, device=levels.device).view(batch, heads, 1)
    flat = (unit * count + query_block).flatten()
    return levels.reshape(batch * heads * count, -1).index_select(0, flat).view(*query_block.shape, -1)


class _ColumnCoverage:
    """Mass and number of the single columns that a vertical-slash level reads beside its blocks."""

    def __init__(
        self,
        inputs: AttentionInputs,
        segment: Segment,
        probe: Probe,
        index: FamilyIndex,
        row_levels: torch.Tensor,
    ) -> None:
        assert index.columns is not None
        self._levels = index.column_levels
        self._block = index.columns // segment.block_k
        self._mass = column_mass_of_rows(inputs, segment, probe, index.columns)
        block = self._block.unsqueeze(2).expand(-1, -1, row_levels.shape[2], -1)
        self._block_levels = row_levels.gather(-1, block)

    def mass(self, level: int) -> torch.Tensor:
        """[B, H, P]: mass of the level's columns outside the row's blocks."""
        width = int((self._levels <= level).sum())
        single = self._block_levels[..., :width] > level
        return (self._mass[..., :width] * single).sum(-1)

    def count(self, level: int, uncovered: torch.Tensor) -> torch.Tensor:
        """[B, H]: columns read over the body; uncovered [B, H, N] = query blocks that see but don't read a block."""
        width = int((self._levels <= level).sum())
        return uncovered.gather(-1, self._block[..., :width]).sum(-1)
