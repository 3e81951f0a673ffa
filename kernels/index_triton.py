"""Builders, scoring and lowering on Triton: one pass each over the level maps, static shapes, no host sync.

Each function has its slow twin in the engine (``builders/``, ``coverage.py``, ``execute.py``), which is what a CPU
runs; only ``score_levels`` differs from its twin, by the width of a bin. Triton is imported inside the functions.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.kernels.interface import RowPlan
from routesparse.kernels.probe_triton import _numbers, _power_of_two, _warps

SCORE_BINS = 256
COLUMNS_PER_PROGRAM = 512
COLUMN_LAUNCH = (64, 32, 4, 3)  # rows and columns of a tile, warps, stages; as measured on an H200
# A row of the plan that keeps a larger share of the longest row's blocks is dense: it saves too little to be listed.
LISTED_SHARE = 0.625


@dataclass(frozen=True)
class Place:
    """Where a segment's query blocks stand: rows at key positions [position, keys), left padding aside."""

    position: int
    rows: int
    keys: int
    body_blocks: int
    block_q: int
    block_k: int
    local_blocks: int  # before the diagonal ones that every plan reads
    first_keys: torch.Tensor  # int64 [B]

    @property
    def query_blocks(self) -> int:
        """M."""
        return -(-self.rows // self.block_q)

    @property
    def key_blocks(self) -> int:
        """N."""
        return -(-self.keys // self.block_k)


def score_levels(
    scores: torch.Tensor,
    place: Place,
    budgets: torch.Tensor,
    shares: torch.Tensor,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Top-k and top-p level maps uint8 [B, H, M, N] of pooled scores [B, H, M, N] (before scale and soft cap).

    And how many blocks each query block reads at each level, int32 [B, H, M, levels] of either family.
    budgets int32 [levels], blocks a row, forced ones included; shares float32 [levels]. A row's scores are cut into
    SCORE_BINS equal bins: a bin belongs to a top-k level where it fits as a whole, and to a top-p level while the
    weight of the better bins is below the share.
    """
    from routesparse.kernels.index_kernel import score_levels_kernel

    scores = scores.contiguous()
    batch, heads, query_blocks, key_blocks = scores.shape
    if key_blocks > 0xFFFF:
        raise ValueError(f"{key_blocks:,} KV blocks; counts hold {0xFFFF:,}")
    top_k = torch.empty(scores.shape, dtype=torch.uint8, device=scores.device)
    top_p = torch.empty_like(top_k)
    rows = (batch, heads, query_blocks)
    top_k_count = torch.empty(*rows, len(budgets), dtype=torch.int32, device=scores.device)
    top_p_count = torch.empty(*rows, len(shares), dtype=torch.int32, device=scores.device)
    width = _power_of_two(key_blocks)
    score_levels_kernel[(batch * heads * query_blocks,)](
        scores,
        top_k,
        top_p,
        top_k_count,
        top_p_count,
        budgets,
        shares,
        place.first_keys,
        heads,
        query_blocks,
        key_blocks,
        place.position,
        place.keys,
        scale,
        softcap or 0.0,
        BLOCK_Q=place.block_q,
        BLOCK_K=place.block_k,
        LOCAL_BLOCKS=place.local_blocks,
        BUDGETS=len(budgets),
        SHARES=len(shares),
        N=width,
        BINS=SCORE_BINS,
        SOFTCAP=bool(softcap),
        num_warps=_warps(width),
    )
    return top_k, top_p, top_k_count, top_p_count


def slash_levels(band_levels: torch.Tensor, place: Place) -> torch.Tensor:
    """Level map uint8 [B, H, M, N] of bands: band_levels uint8 [B, H, N] by block distance."""
    from routesparse.kernels.index_kernel import slash_levels_kernel

    batch, heads, key_blocks = band_levels.shape
    out = torch.empty(
        batch, heads, place.query_blocks, key_blocks, dtype=torch.uint8, device=band_levels.device
    )
    width = min(2_048, _power_of_two(key_blocks))
    slash_levels_kernel[(batch * heads * place.query_blocks, -(-key_blocks // width))](
        band_levels.contiguous(),
        out,
        place.first_keys,
        heads,
        place.query_blocks,
        key_blocks,
        place.position,
        place.keys,
        BLOCK_Q=place.block_q,
        BLOCK_K=place.block_k,
        LOCAL_BLOCKS=place.local_blocks,
        N=width,
        num_warps=_warps(width),
    )
    return out


def count_levels(levels: torch.Tensor, body_blocks: int, count: int) -> torch.Tensor:
    """Body query blocks that read each KV block at levels 0 .. count - 1 (at most 8): int32 [B, H, count, N]."""
    if count > 8:
        raise ValueError(f"{count} levels; the counters hold 8")
    from routesparse.kernels.index_kernel import count_kernel

    batch, heads, query_blocks, key_blocks = levels.shape
    levels = levels.contiguous()
    out = torch.empty(batch, heads, count, key_blocks, dtype=torch.int32, device=levels.device)
    count_kernel[(-(-key_blocks // 128), batch * heads)](
        levels,
        out,
        query_blocks * key_blocks,
        body_blocks,
        key_blocks,
        count,
        LEVELS=_levels(count),
        N=128,
        num_warps=4,
    )
    return out


def cover_rows(
    mass: torch.Tensor, query_block: torch.Tensor, levels: torch.Tensor, count: int
) -> torch.Tensor:
    """Block mass that levels 0 .. count - 1 read in each probe row: float32 [B, H, P, count].

    mass float32 [B, H, P, N], query_block int64 [B, H, P], levels uint8 [B or 1, H or 1, M, N].
    """
    from routesparse.kernels.index_kernel import cover_rows_kernel

    _, heads, rows, key_blocks = mass.shape
    levels = levels.contiguous()
    out = torch.empty(*mass.shape[:3], count, dtype=torch.float32, device=mass.device)
    width = _power_of_two(key_blocks)
    cover_rows_kernel[(out[..., 0].numel(),)](
        mass,
        query_block.contiguous(),
        levels,
        out,
        levels.stride(0) if levels.shape[0] > 1 else 0,
        levels.stride(1) if levels.shape[1] > 1 else 0,
        heads,
        rows,
        key_blocks,
        count,
        LEVELS=_levels(count),
        N=width,
        num_warps=_warps(width),
    )
    return out


def cover_columns(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    lse: torch.Tensor,
    mass: torch.Tensor,
    columns: torch.Tensor,
    column_counts: torch.Tensor,
    levels: torch.Tensor,
    place: Place,
    *,
    shift: int,
    scale: float,
    softcap: float | None,
    pooled: tuple[int, int, int] | None,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Mass of single columns that levels 0 .. L - 1 read in each probe row beside its blocks: float32 [B, H, P, L].

    positions int64 [B, H, P] (the query is q[position - shift]), lse [B, H, P], mass [B, H, P, N]; columns int64
    [B, H, V] best first, column_counts int32 [L], levels uint8 [B, H, M, N]. pooled: (start, end, start) of the rows
    that know blocks only, or None. table: see probe_triton.block_lse.
    """
    from routesparse.kernels.index_kernel import cover_columns_kernel

    batch, heads, count = positions.shape
    width, levels_count = columns.shape[-1], len(column_counts)
    parts = -(-width // COLUMNS_PER_PROGRAM)
    rows_at_once, columns_at_once, warps, stages = COLUMN_LAUNCH
    out = torch.empty(parts, batch, heads, count, levels_count, dtype=torch.float32, device=q.device)
    cover_columns_kernel[(-(-count // rows_at_once), batch * heads, parts)](
        q,
        k,
        out if table is None else table,
        positions.contiguous(),
        lse,
        mass,
        columns.contiguous(),
        column_counts,
        levels.contiguous(),
        out,
        place.first_keys,
        *q.stride(),
        *k.stride(),
        heads,
        heads // k.shape[1],
        count,
        width,
        COLUMNS_PER_PROGRAM,
        place.query_blocks,
        place.key_blocks,
        levels_count,
        shift,
        place.position,
        *(pooled or (0, 0, 0)),
        scale,
        softcap or 0.0,
        BLOCK_Q=place.block_q,
        BLOCK_K=place.block_k,
        ROWS=rows_at_once,
        COLUMNS=columns_at_once,
        LEVELS=_levels(levels_count),
        POOLED=pooled is not None,
        SOFTCAP=bool(softcap),
        INDIRECT=table is not None,
        **_numbers(q),
        num_warps=warps,
        num_stages=stages,
    )
    return out.sum(0)


def lower_levels(
    family: torch.Tensor,
    level: torch.Tensor,
    maps: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    columns: torch.Tensor,
    column_counts: torch.Tensor,
    place: Place,
    *,
    key_start: torch.Tensor | None,
    softcap: float | None,
    sinks: torch.Tensor | None,
) -> RowPlan:
    """The row plan of chosen (family, level), int32 [B, H] each; family -1 is dense, as are rows past the body.

    maps: level maps of families 0 .. 3; the first may be [B or 1, 1, M, N]. columns int64 [B, H, V] of family 1,
    column_counts int64 [B, H]: how many of them the chosen level holds.
    """
    from routesparse.kernels.index_kernel import lower_kernel

    batch, heads = family.shape
    rows = (batch, heads, place.query_blocks)
    device = family.device
    capacity = max(place.block_q // place.block_k + 2, int(LISTED_SHARE * place.key_blocks))
    width = columns.shape[-1]
    slots = torch.arange(width, device=device)
    held = columns.masked_fill(slots >= column_counts.unsqueeze(-1), place.keys).sort(-1).values
    blocks = torch.empty(*rows, capacity, dtype=torch.int32, device=device)
    singles = torch.empty(*rows, width, dtype=torch.int32, device=device)
    block_count = torch.empty(rows, dtype=torch.int32, device=device)
    single_count = torch.empty_like(block_count)
    dense = torch.empty(rows, dtype=torch.uint8, device=device)
    closed, slash, top_k, top_p = (levels.contiguous() for levels in maps)
    key_blocks = _power_of_two(place.key_blocks)
    lower_kernel[(dense.numel(),)](
        family.contiguous(),
        level.contiguous(),
        closed,
        slash,
        top_k,
        top_p,
        held,
        column_counts,
        place.first_keys,
        blocks,
        block_count,
        singles,
        single_count,
        dense,
        closed.stride(0) if closed.shape[0] > 1 else 0,
        heads,
        place.query_blocks,
        place.body_blocks,
        place.key_blocks,
        capacity,
        width,
        place.position,
        place.keys,
        BLOCK_Q=place.block_q,
        BLOCK_K=place.block_k,
        N=key_blocks,
        COLUMNS=256,
        num_warps=_warps(key_blocks),
    )
    return RowPlan(
        place.rows,
        place.keys,
        place.block_q,
        place.block_k,
        blocks,
        block_count,
        singles,
        single_count,
        dense.view(torch.bool),
        key_start,
        None,
        softcap,
        sinks,
    )


def _levels(count: int) -> int:
    return max(2, 1 << (count - 1).bit_length())
