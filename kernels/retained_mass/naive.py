"""Retained masses by tensor operations, a family at a time."""

from __future__ import annotations

import itertools
from dataclasses import dataclass

import torch

from routesparse.kernels.causal_blocks import forced_and_causal
from routesparse.kernels.geometry import FamilyMaps, RankedColumns, SegmentGeometry
from routesparse.kernels.logits import Logits, capped_logits, row_queries


@dataclass(frozen=True)
class ProbedRows:
    """P probe rows of each head. rows int64 [B, H, P], numbers in the segment, whose row r is q[first_row + r]."""

    rows: torch.Tensor
    lse: torch.Tensor  # float32 [B, H, P]
    block_mass: torch.Tensor  # float32 [B, H, P, N]
    sink_mass: torch.Tensor  # float32 [B, H, P], mass of the always-kept attention sink
    first_row: int
    # Start and end of the first and start of the second range of rows that know whole blocks only (pooled probe).
    pooled: tuple[int, int, int] | None


@dataclass(frozen=True)
class FamilyLevels(FamilyMaps):
    """Level maps to be scored.

    depths: levels of each family. counts: what each level reads, int32, B and H as in the maps: [B, H, M, levels], the
    blocks of each query block, where by_row says so, else [B, H, levels, N], the body's query blocks that read each KV
    block, as the family with columns has them.
    """

    depths: tuple[int, ...]
    counts: tuple[torch.Tensor, ...]
    by_row: tuple[bool, ...]


def retained_mass(
    logits: Logits,
    probed: ProbedRows,
    families: FamilyLevels,
    candidates: torch.Tensor,
    geometry: SegmentGeometry,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Score C candidates on the probe rows and count what they read over the body's query blocks, all heads at once.

    Returns float32 masses [B, H, P, C] in [0, 1], dense 1; then [B, H, C] each: KV tiles, single columns, and the kept
    share of the body's causal area, left padding aside.

    candidates int32 [C, 2]: family (its number in ``families``) and level, the families in order, each with all its
    levels, and DENSE last.
    """
    batch, heads, count, _ = probed.block_mass.shape
    width = sum(families.depths) + 1
    row_mass = probed.block_mass.new_ones(batch, heads, count, width)
    query_block = probed.rows // geometry.block_q
    _, causal = forced_and_causal(geometry)
    reach = causal[:, :, : geometry.body_blocks].float().sum(2)
    total = reach.sum(-1, keepdim=True).clamp_min(1.0)
    tiles = total.expand(batch, heads, width).clone()
    columns = probed.lse.new_zeros(batch, heads, width)

    ends = itertools.accumulate(families.depths)
    for family, (level_map, depth, end) in enumerate(zip(families.maps, families.depths, ends, strict=True)):
        levels = slice(end - depth, end)  # the family's candidates
        row_levels = _rows_of(level_map.expand(batch, heads, -1, -1), query_block)
        mass = _up_to(row_levels, probed.block_mass, depth)
        counts = families.counts[family]
        if families.columns is not None and family == families.columns_of:
            singles = _SingleColumns(logits, probed, families.columns, row_levels, geometry)
            mass = mass + singles.mass
            uncovered = reach.unsqueeze(2) - counts
            columns[..., levels] = singles.counts(uncovered.expand(batch, heads, -1, -1))
        row_mass[..., levels] = (mass + probed.sink_mass.unsqueeze(-1)).clamp_(0.0, 1.0)
        by_row = families.by_row[family]
        tiles[..., levels] = counts[:, :, : geometry.body_blocks].sum(2) if by_row else counts.sum(3)
    density = (tiles + columns / geometry.block_k) / total
    return row_mass, tiles, columns, density.clamp_max(1.0)


def column_mass(
    logits: Logits, probed: ProbedRows, columns: torch.Tensor, geometry: SegmentGeometry
) -> torch.Tensor:
    """Softmax mass of single columns: columns int64 [B, H, V] -> [B, H, P, V], 0 beyond causality.

    Exact, but for the pooled rows: they know blocks, so a column has its block's mean (an exact logit over a pooled
    log-sum-exp would overrate it many times).
    """
    batch, heads, width = columns.shape
    queries = row_queries(logits.q, probed.rows + probed.first_row)
    out = queries.new_empty(batch, heads, probed.rows.shape[-1], width, dtype=torch.float32)
    for b in range(batch):
        for h in range(heads):
            keys = logits.k[b, h // logits.group].index_select(0, columns[b, h])
            mass = capped_logits(queries[b, h], keys, logits.scale, logits.softcap)
            mass -= probed.lse[b, h].unsqueeze(-1)
            positions = probed.rows[b, h].unsqueeze(-1) + geometry.position
            column = columns[b, h].unsqueeze(0)
            visible = (column <= positions) & (column >= geometry.first_keys[b])
            out[b, h] = mass.exp_().masked_fill_(~visible, 0.0)
    if probed.pooled is not None:
        start, end, second = probed.pooled
        block = (columns // geometry.block_k).unsqueeze(2).expand(-1, -1, out.shape[2], -1)
        mean = probed.block_mass.gather(-1, block) / geometry.block_k
        for part in (slice(start, end), slice(second, None)):
            out[:, :, part] = mean[:, :, part].where(out[:, :, part] > 0, 0.0)
    return out


def _rows_of(levels: torch.Tensor, query_block: torch.Tensor) -> torch.Tensor:
    """The level map's rows of the probe rows: levels [B, H, M, N], query_block [B, H, P] -> [B, H, P, N]."""
    batch, heads, count, _ = levels.shape
    unit = torch.arange(batch * heads, device=levels.device).view(batch, heads, 1)
    flat = (unit * count + query_block).flatten()
    return levels.reshape(batch * heads * count, -1).index_select(0, flat).view(*query_block.shape, -1)


def _up_to(levels: torch.Tensor, mass: torch.Tensor, depth: int) -> torch.Tensor:
    """The mass of the blocks of each level and those below: both [B, H, P, N] -> [B, H, P, depth]."""
    by_level = mass.new_zeros(*mass.shape[:-1], depth + 1)
    return by_level.scatter_add_(-1, levels.clamp_max(depth).long(), mass).cumsum(-1)[..., :depth]


class _SingleColumns:
    """Mass and number of the single columns that a level reads beside its blocks."""

    def __init__(
        self,
        logits: Logits,
        probed: ProbedRows,
        columns: RankedColumns,
        row_levels: torch.Tensor,
        geometry: SegmentGeometry,
    ) -> None:
        self._widths = columns.counts.tolist()
        self._block = columns.ranked // geometry.block_k
        mass = column_mass(logits, probed, columns.ranked, geometry)
        # A column counts from the level that holds it to the one that reads its block.
        block_levels = row_levels.gather(-1, self._block.unsqueeze(2).expand_as(mass))
        held, depth = columns.levels.expand_as(block_levels), len(self._widths)
        ends = torch.maximum(held, block_levels)
        # [B, H, P, depth]: mass of each level's columns outside of the row's blocks.
        self.mass = _up_to(held, mass, depth) - _up_to(ends, mass, depth)

    def counts(self, uncovered: torch.Tensor) -> torch.Tensor:
        """[B, H, depth]: columns read over the body; uncovered [B, H, depth, N]: query blocks that see a KV block but
        don't read it.
        """
        levels = zip(uncovered.unbind(2), self._widths, strict=True)
        return torch.stack(
            [blocks.gather(-1, self._block[..., :width]).sum(-1) for blocks, width in levels], -1
        )
