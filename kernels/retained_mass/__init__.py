"""Retained mass of every candidate on every probe row, and its tiles and columns (paper section 3.2, step 2).

A row's mass under level b of a family is the block mass at blocks with level <= b, plus, where the family has single
columns, the mass of columns of level <= b whose block the row does not already read: exactly the mass of the plan
that would run, before the tail override. One pass over the block masses scores all budgets.
"""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, head_strides, power_of_two, product_constants, variant
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.retained_mass import naive
from routesparse.kernels.retained_mass.naive import (
    FamilyLevels,
    FamilyMaps,
    ProbedRows,
    RankedColumns,
    RetainedMass,
)

__all__ = ["FamilyLevels", "FamilyMaps", "ProbedRows", "RankedColumns", "RetainedMass", "retained_mass"]

COLUMNS_PER_PROGRAM = 512
COLUMN_LAUNCH = (32, 64, 2, 3)  # rows and columns of a tile, warps, stages; as measured on an H200
BLOCKS_AT_ONCE = 128
TOTALS_AT_ONCE = 1_024


@dispatched(naive.retained_mass)
def retained_mass(
    q: torch.Tensor,
    k: torch.Tensor,
    probed: ProbedRows,
    families: FamilyLevels,
    candidates: torch.Tensor,
    geometry: SegmentGeometry,
    *,
    scale: float,
    softcap: float | None,
    table: torch.Tensor | None = None,
) -> RetainedMass:
    """See the naive twin: masses of single columns, then of all levels of all families, then their tiles."""
    batch, heads = probed.rows.shape[:2]
    columns = families.columns
    by_key = candidates.new_empty(batch, heads, 0) if columns is None else columns.by_key
    singles = probed.lse
    if columns is not None:
        singles = column_mass(
            q,
            k,
            probed.rows,
            probed.lse,
            by_key,
            first_row=probed.first_row,
            position=geometry.position,
            scale=scale,
            softcap=softcap,
            table=table,
        )
    row_mass = cover_rows(probed, families, by_key, singles, geometry)
    return RetainedMass(row_mass, *totals(candidates, families, by_key, geometry).unbind(0))


def by_position(rows: torch.Tensor) -> torch.Tensor:
    """Probe rows [B, H, P] in the order of their positions: the numbers of the rows, int32 [B, H, P]."""
    from routesparse.kernels.retained_mass.kernel import by_position_kernel

    batch, heads, count = rows.shape
    order = torch.empty(rows.shape, dtype=torch.int32, device=rows.device)
    variant(by_position_kernel)[(-(-count // 32), batch * heads)](rows, order, count, ROWS=32, num_warps=4)
    return order


def column_mass(
    q: torch.Tensor,
    k: torch.Tensor,
    rows: torch.Tensor,
    lse: torch.Tensor,
    columns: torch.Tensor,
    *,
    first_row: int,
    position: int,
    scale: float,
    softcap: float | None,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Softmax mass of single columns in each probe row: float32 [B, H, P, >= V].

    Anything may stand where a row does not see the column. rows int64 [B, H, P] of the segment (the query is
    q[rows + first_row], at key ``position + rows``), lse [B, H, P], columns int32 [B, H, V], ascending, 8 times the
    key plus a level. table: as in ``block_lse``.
    """
    from routesparse.kernels.retained_mass.kernel import column_mass_kernel

    batch, heads, count = rows.shape
    width = columns.shape[-1]
    rows_at_once, columns_at_once, warps, stages = COLUMN_LAUNCH
    padded = -(-width // columns_at_once) * columns_at_once
    out = torch.empty(batch, heads, count, padded, dtype=torch.float32, device=q.device)
    grid = (-(-count // rows_at_once), batch * heads, -(-width // COLUMNS_PER_PROGRAM))
    variant(column_mass_kernel, width=width)[grid](
        q,
        k,
        out if table is None else table,
        rows,
        by_position(rows),
        lse,
        columns,
        out,
        *q.stride(),
        *k.stride(),
        heads,
        heads // k.shape[1],
        count,
        width,
        padded,
        first_row,
        position,
        scale,
        softcap or 0.0,
        CHUNK=COLUMNS_PER_PROGRAM,
        ROWS=rows_at_once,
        COLUMNS=columns_at_once,
        SOFTCAP=bool(softcap),
        INDIRECT=table is not None,
        **product_constants(q),
        num_warps=warps,
        num_stages=stages,
    )
    return out


def cover_rows(
    probed: ProbedRows,
    families: FamilyLevels,
    columns: torch.Tensor,
    column_mass: torch.Tensor,
    geometry: SegmentGeometry,
) -> torch.Tensor:
    """Mass that each level of each family reads in each probe row, and dense: float32 [B, H, P, sum of depths + 1].

    columns and column_mass as in ``column_mass``; where no family has any, they may hold anything.
    """
    from routesparse.kernels.retained_mass.kernel import cover_rows_kernel

    mass = probed.block_mass
    batch, heads, count, key_blocks = mass.shape
    candidates = sum(families.depths) + 1
    out = torch.empty(batch, heads, count, candidates, dtype=torch.float32, device=mass.device)
    width = columns.shape[-1]
    variant(
        cover_rows_kernel,
        width=width,
        query_blocks=geometry.query_blocks,
        key_blocks=key_blocks,
    )[(batch * heads * count * len(families.maps),)](
        mass,
        probed.sink_mass,
        probed.rows,
        tuple(levels.contiguous() for levels in families.maps),
        columns,
        column_mass,
        geometry.first_keys,
        out,
        heads,
        count,
        width,
        column_mass.shape[-1],
        geometry.query_blocks,
        key_blocks,
        geometry.position,
        *(probed.pooled or (0, 0, 0)),
        BLOCK_Q=geometry.block_q,
        BLOCK_K=geometry.block_k,
        STRIDES=head_strides(families.maps, batch, heads),
        DEPTHS=families.depths,
        COLUMNS_OF=families.columns_of,
        CANDIDATES=candidates,
        POOLED=probed.pooled is not None,
        PIECES=power_of_two(-(-width // BLOCKS_AT_ONCE)),
        N=BLOCKS_AT_ONCE,
        num_warps=1,
    )
    return out


def totals(
    candidates: torch.Tensor, families: FamilyLevels, columns: torch.Tensor, geometry: SegmentGeometry
) -> torch.Tensor:
    """Tiles, single columns and density of each candidate over the body: float32 [3, B, H, C].

    candidates int32 [C, 2]: family and level; columns int32 [B, H, V] as in ``column_mass``.
    """
    from routesparse.kernels.retained_mass.kernel import totals_kernel

    batch, heads, width = columns.shape
    count = len(candidates)
    out = torch.empty(3, batch, heads, count, dtype=torch.float32, device=columns.device)
    variant(
        totals_kernel,
        width=width,
        query_blocks=geometry.query_blocks,
        key_blocks=geometry.key_blocks,
        segment_keys=geometry.keys,
    )[(count, batch * heads)](
        candidates,
        tuple(counts.contiguous() for counts in families.counts),
        columns,
        geometry.first_keys,
        out,
        heads,
        width,
        geometry.query_blocks,
        geometry.body_blocks,
        geometry.key_blocks,
        geometry.position,
        geometry.keys,
        BLOCK_Q=geometry.block_q,
        BLOCK_K=geometry.block_k,
        STRIDES=head_strides(families.counts, batch, heads),
        DEPTHS=families.depths,
        BY_ROW=families.by_row,
        COLUMNS_OF=families.columns_of,
        N=min(TOTALS_AT_ONCE, power_of_two(geometry.key_blocks)),
        num_warps=4,
    )
    return out
