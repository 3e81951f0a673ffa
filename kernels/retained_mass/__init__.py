"""Retained mass of every candidate on every probe row, and its tiles and columns (paper section 3.2, step 2).

A row's mass under level b of a family is the block mass at blocks with level <= b, plus, where the family has single
columns, the mass of columns of level <= b whose block the row does not already read: exactly the mass of the plan
that would run, before the tail override. One pass over the block masses scores all budgets.
"""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, head_strides, launch, power_of_two, variant
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits
from routesparse.kernels.retained_mass import naive
from routesparse.kernels.retained_mass.naive import FamilyLevels, ProbedRows

__all__ = ["FamilyLevels", "ProbedRows", "retained_mass"]

COLUMNS_PER_PROGRAM = 512
COLUMN_LAUNCH = (32, 64, 2, 3)  # rows and columns of a tile, warps, stages; as measured on an H200
BLOCKS_AT_ONCE = 128
TOTALS_AT_ONCE = 1_024


@dispatched(naive.retained_mass)
def retained_mass(
    logits: Logits,
    probed: ProbedRows,
    families: FamilyLevels,
    candidates: torch.Tensor,
    geometry: SegmentGeometry,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the naive twin: masses of single columns, then of all levels of all families, then their tiles."""
    columns = families.columns
    by_key = candidates.new_empty(*probed.rows.shape[:2], 0) if columns is None else columns.by_key
    singles = probed.lse if columns is None else column_mass(logits, probed, by_key, geometry.position)
    row_mass = cover_rows(probed, families, by_key, singles, geometry)
    tiles, singles, density = totals(candidates, families, by_key, geometry)
    return row_mass, tiles, singles, density


def by_position(rows: torch.Tensor) -> torch.Tensor:
    """Probe rows [B, H, P] in the order of their positions: the numbers of the rows, int32 [B, H, P]."""
    from routesparse.kernels.retained_mass.kernel import by_position_kernel

    batch, heads, count = rows.shape
    order = torch.empty(rows.shape, dtype=torch.int32, device=rows.device)
    variant(by_position_kernel)[(-(-count // 32), batch * heads)](rows, order, count, ROWS=32, num_warps=4)
    return order


def column_mass(logits: Logits, probed: ProbedRows, columns: torch.Tensor, position: int) -> torch.Tensor:
    """Softmax mass of single columns in each probe row: float32 [B, H, P, >= V].

    Anything may stand where a row does not see the column. columns int32 [B, H, V], ascending, 8 times the key plus a
    level; position: key position of the segment's row 0.
    """
    from routesparse.kernels.retained_mass.kernel import column_mass_kernel

    batch, heads, count = probed.rows.shape
    width = columns.shape[-1]
    rows_at_once, columns_at_once, warps, stages = COLUMN_LAUNCH
    padded = -(-width // columns_at_once) * columns_at_once
    out = torch.empty(batch, heads, count, padded, dtype=torch.float32, device=columns.device)
    launch(
        column_mass_kernel,
        (-(-count // rows_at_once), batch * heads, -(-width // COLUMNS_PER_PROGRAM)),
        logits.arguments(),
        lengths=("width",),
        row=probed.rows,
        order=by_position(probed.rows),
        lse=probed.lse,
        columns=columns,
        out=out,
        count=count,
        width=width,
        out_width=padded,
        first_row=probed.first_row,
        segment_position=position,
        CHUNK=COLUMNS_PER_PROGRAM,
        ROWS=rows_at_once,
        COLUMNS=columns_at_once,
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
    batch, heads, count, _ = mass.shape
    candidates, width = sum(families.depths) + 1, columns.shape[-1]
    out = torch.empty(batch, heads, count, candidates, dtype=torch.float32, device=mass.device)
    exact_end, pooled_end, boundary = probed.pooled or (0, 0, 0)
    launch(
        cover_rows_kernel,
        (batch * heads * count * len(families.maps),),
        geometry.arguments(),
        families.arguments(batch, heads),
        lengths=("width",),
        mass=mass,
        sink_mass=probed.sink_mass,
        row=probed.rows,
        columns=columns,
        column_mass=column_mass,
        out=out,
        heads=heads,
        count=count,
        width=width,
        mass_width=column_mass.shape[-1],
        exact_end=exact_end,
        pooled_end=pooled_end,
        boundary=boundary,
        DEPTHS=families.depths,
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
    launch(
        totals_kernel,
        (count, batch * heads),
        geometry.arguments(),
        lengths=("width",),
        table=candidates,
        counts=tuple(counts.contiguous() for counts in families.counts),
        columns=columns,
        out=out,
        heads=heads,
        width=width,
        STRIDES=head_strides(families.counts, batch, heads),
        DEPTHS=families.depths,
        BY_ROW=families.by_row,
        COLUMNS_OF=families.columns_of,
        N=min(TOTALS_AT_ONCE, power_of_two(geometry.key_blocks)),
        num_warps=4,
    )
    return out
