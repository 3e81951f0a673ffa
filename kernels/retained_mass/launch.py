"""Retained masses by three kernels: of single columns, of all levels of all families, and their tiles."""

from __future__ import annotations

import torch

from routesparse.kernels.families import check_known
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.launching import power_of_two, product_constants, variant
from routesparse.kernels.retained_mass.contract import FamilyLevels, ProbedRows, RetainedMass

COLUMNS_PER_PROGRAM = 512


COLUMN_LAUNCH = (32, 64, 2, 3)  # rows and columns of a tile, warps, stages; as measured on an H200


BLOCKS_AT_ONCE = 128


TOTALS_AT_ONCE = 1_024


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
    """The contract of the package: masses of single columns, then of all levels of all families, then their tiles.

    Errors: ValueError for other families than the kernels'.
    """
    check_known(families.names)
    top_k, floor = families.row_counts[2:]
    assert (
        families.columns is not None and families.columns_of == 1 and top_k is not None and floor is not None
    )
    by_key = families.columns.by_key
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
    row_mass = cover_rows(
        probed.block_mass,
        probed.sink_mass,
        probed.rows,
        families.maps,
        families.depths,
        by_key,
        singles,
        probed.pooled,
        geometry,
    )
    tiles = totals(candidates, families.maps[1], by_key, top_k, floor, geometry)
    return RetainedMass(row_mass, *tiles.unbind(0))


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
    mass: torch.Tensor,
    sink_mass: torch.Tensor,
    rows: torch.Tensor,
    maps: tuple[torch.Tensor, ...],
    depths: tuple[int, ...],
    columns: torch.Tensor,
    column_mass: torch.Tensor,
    pooled: tuple[int, int, int] | None,
    geometry: SegmentGeometry,
) -> torch.Tensor:
    """Mass that each level of each family reads in each probe row, and dense: float32 [B, H, P, sum of depths + 1].

    mass float32 [B, H, P, N], sink_mass [B, H, P], rows int64 [B, H, P] of the segment; maps uint8 [B, H, M, N], the
    first [B, 1, M, N]; depths: levels of each. columns and column_mass as in ``column_mass``: singles of the second
    family. pooled: (start, end, start) of the rows that know blocks only, or None.
    """
    from routesparse.kernels.retained_mass.kernel import cover_rows_kernel

    _, heads, count, key_blocks = mass.shape
    out = torch.empty(*mass.shape[:3], sum(depths) + 1, dtype=torch.float32, device=mass.device)
    closed, slash, top_k, floor = maps
    closed_stride = closed.stride(0) if closed.shape[0] > 1 else 0
    width = columns.shape[-1]
    variant(
        cover_rows_kernel,
        closed_stride=closed_stride,
        width=width,
        query_blocks=geometry.query_blocks,
        key_blocks=key_blocks,
    )[(sink_mass.numel(), 2)](
        mass,
        sink_mass,
        rows,
        closed,
        slash,
        top_k,
        floor,
        columns,
        column_mass,
        geometry.first_keys,
        out,
        closed_stride,
        heads,
        count,
        width,
        column_mass.shape[-1],
        geometry.query_blocks,
        key_blocks,
        geometry.position,
        *(pooled or (0, 0, 0)),
        BLOCK_Q=geometry.block_q,
        BLOCK_K=geometry.block_k,
        CLOSED=depths[0],
        SLASH=depths[1],
        TOP_K=depths[2],
        FLOOR=depths[3],
        POOLED=pooled is not None,
        PIECES=power_of_two(-(-width // BLOCKS_AT_ONCE)),
        N=BLOCKS_AT_ONCE,
        num_warps=1,
    )
    return out


def totals(
    candidates: torch.Tensor,
    slash: torch.Tensor,
    columns: torch.Tensor,
    top_k_count: torch.Tensor,
    floor_count: torch.Tensor,
    geometry: SegmentGeometry,
) -> torch.Tensor:
    """Tiles, single columns and density of each candidate over the body: float32 [3, B, H, C].

    candidates int32 [C, 3]: family, level, and blocks of the window (dense: family 0, all blocks). slash uint8
    [B, H, M, N] and columns int32 [B, H, V] of family 1 as in ``column_mass``; top_k_count and floor_count int32
    [B, H, M, levels].
    """
    from routesparse.kernels.retained_mass.kernel import totals_kernel

    batch, heads, width = columns.shape
    count = len(candidates)
    out = torch.empty(3, batch, heads, count, dtype=torch.float32, device=columns.device)
    scratch = torch.empty(
        batch, heads, count, 2, geometry.key_blocks, dtype=torch.int32, device=columns.device
    )
    variant(
        totals_kernel,
        width=width,
        query_blocks=geometry.query_blocks,
        key_blocks=geometry.key_blocks,
        segment_keys=geometry.keys,
    )[(count, batch * heads)](
        candidates,
        slash,
        columns,
        top_k_count,
        floor_count,
        geometry.first_keys,
        scratch,
        out,
        heads,
        width,
        geometry.query_blocks,
        geometry.body_blocks,
        geometry.key_blocks,
        geometry.position,
        geometry.keys,
        top_k_count.shape[-1],
        floor_count.shape[-1],
        BLOCK_Q=geometry.block_q,
        BLOCK_K=geometry.block_k,
        LOCAL_BLOCKS=geometry.local_blocks,
        N=max(geometry.block_q // geometry.block_k, min(TOTALS_AT_ONCE, power_of_two(geometry.key_blocks))),
        num_warps=4,
    )
    return out
