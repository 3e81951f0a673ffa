"""m-hat of every candidate on every probe row, and what it would cost in tiles (paper section 3.2, step 2).

A row's mass under level b of a family is the block mass at blocks with level <= b, plus, for vertical-slash, the
mass of columns of level <= b whose block the row does not already read: exactly the mass of the plan that would
run, before the tail override. All budgets come from one pass over the family's level map.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from routesparse.engine import device_path
from routesparse.engine.builders import FamilyIndex
from routesparse.engine.builders.level_map import diagonal_and_sink
from routesparse.engine.patterns import Candidate
from routesparse.engine.probe import (
    BOUNDARY,
    RECENT,
    ROUTING,
    AttentionInputs,
    Probe,
    column_mass_of_rows,
)
from routesparse.engine.readout import constant
from routesparse.engine.records import Pattern
from routesparse.engine.segments import Segment
from routesparse.kernels import index_triton


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
    """``cover`` by the kernels: all levels of a family in one pass over its map."""
    batch, heads, count, _ = probe.block_mass.shape
    device = inputs.q.device
    place = segment.place(inputs.first_keys())
    query_block = probe.rows.rows // segment.block_q
    reach = _reach(segment, inputs)
    total = reach.sum(-1, keepdim=True).clamp_min(1.0).view(-1, 1, 1)
    masses, tiles, columns = [], [], []
    for pattern, index in indices.items():
        levels = [c.level for c in candidates if c.pattern == pattern]
        if not levels:
            continue
        depth = len(levels)
        mass = index_triton.cover_rows(probe.block_mass, query_block, index.levels, depth)
        if index.row_counts is not None:
            tiles.append(index.row_counts[:, :, : segment.body_blocks].sum(2).float())
        else:
            read = index_triton.count_levels(index.levels, segment.body_blocks, depth)
            tiles.append(read.sum(-1).float().expand(batch, heads, depth))
        singles = torch.zeros(batch, heads, depth, device=device)
        if index.columns is not None:
            counts = constant(np.array(index.column_counts), device)
            mass = mass + index_triton.cover_columns(
                inputs.q,
                inputs.k,
                probe.rows.rows + segment.position,
                probe.lse,
                probe.block_mass,
                index.columns,
                counts,
                index.levels,
                place,
                shift=segment.position - segment.first,
                scale=inputs.scale,
                softcap=inputs.softcap,
                pooled=_pooled_rows(probe) if probe.pooled else None,
                table=inputs.table,
            )
            uncovered = reach.view(-1, 1, 1, segment.key_blocks) - read
            home = (index.columns // segment.block_k).unsqueeze(2).expand(-1, -1, depth, -1)
            held = torch.arange(index.columns.shape[-1], device=device) < counts.view(-1, 1)
            singles = (uncovered.gather(-1, home) * held).sum(-1).float()
        masses.append(mass)
        columns.append(singles)
    one = torch.ones(batch, heads, count, 1, device=device)
    row_mass = torch.cat([*masses, one - probe.sink_mass.unsqueeze(-1)], -1) + probe.sink_mass.unsqueeze(-1)
    all_tiles = torch.cat([*tiles, total.expand(batch, heads, 1)], -1)
    all_columns = torch.cat([*columns, torch.zeros(batch, heads, 1, device=device)], -1)
    density = (all_tiles + all_columns / segment.block_k) / total
    return Coverage(row_mass.clamp_(0.0, 1.0), all_tiles, all_columns, density.clamp_max(1.0))


def _reach(segment: Segment, inputs: AttentionInputs) -> torch.Tensor:
    """float32 [B, N]: the body's query blocks that may read each KV block."""
    device = inputs.q.device
    block = torch.arange(segment.key_blocks, device=device)
    sink = (inputs.first_keys() // segment.block_k).view(-1, 1)
    # Query blocks whose last row stands before the block: the last blocks rise, so they are the first ones.
    last = constant(segment.last_blocks()[: segment.body_blocks], device)
    after = segment.body_blocks - torch.searchsorted(last, block)
    return torch.where(block >= sink, after, 0).float()


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
