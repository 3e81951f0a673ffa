"""What a record keeps, on Triton: the probe's pictures and lap times, without a host sync.

Each function has its slow twin in the engine (``heatmap.py``), which is what a CPU runs.
Triton is imported inside the functions: this module loads on a machine without it.
"""

from __future__ import annotations

import torch

from routesparse.kernels.probe_triton import _power_of_two

PICTURE_PARTS = 4  # blocks of a column that a picture's program loads at once


def single_levels(columns: torch.Tensor, counts: torch.Tensor, key_blocks: int, block_k: int) -> torch.Tensor:
    """The smallest level that reads a column of each KV block singly, 255 for none: uint8 [B, H, N].

    columns int64 [B, H, V] best first; counts int32 [levels], rising: how many of them each level holds.
    """
    from routesparse.kernels.record_kernel import single_kernel

    batch, heads, width = columns.shape
    single = torch.empty(batch, heads, key_blocks, dtype=torch.uint8, device=columns.device)
    single_kernel[(batch * heads,)](
        columns.contiguous(),
        counts,
        single,
        width,
        key_blocks,
        BLOCK_K=block_k,
        LEVELS=len(counts),
        num_warps=8,
    )
    return single


def write_laps(times: torch.Tensor, laps: torch.Tensor) -> None:
    """times int64 [laps + 1] in nanoseconds -> laps float64 [laps] in microseconds."""
    from routesparse.kernels.record_kernel import laps_kernel

    laps_kernel[(1,)](times, laps, len(laps), COUNT=_power_of_two(len(laps)), num_warps=1)


def pictures(
    mass: torch.Tensor,
    rows: torch.Tensor,
    drawn: torch.Tensor,
    maps: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    single: torch.Tensor,
    *,
    position: int,
    block_q: int,
    block_k: int,
    pool: int,
    mask_pool: int,
    last: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """Pictures of U = B * H units: (mass float16 [U, R, ceil(N / pool)], masks uint8 [U, 2, R, ceil(N / mask_pool)],
    positions int32 [U, R] of the rows).

    mass float32 [B, H, P, N]; rows int64 [B, H, P] in the segment; drawn int64 [R]: the probe rows of a picture.
    maps: level maps of the four families, the first [B or 1, 1, M, N], the others [B, H, M, N]; single uint8
    [B, H, N]: the smallest level that reads a column of the block singly. position: key position of row 0. last: the
    value of a cell that is never read.
    """
    from routesparse.kernels.record_kernel import picture_kernel

    batch, heads, count, key_blocks = mass.shape
    units, columns, mask_columns = batch * heads, -(-key_blocks // pool), -(-key_blocks // mask_pool)
    picture = torch.empty(units, len(drawn), columns, dtype=torch.float16, device=mass.device)
    masks = torch.empty(units, 2, len(drawn), mask_columns, dtype=torch.uint8, device=mass.device)
    positions = torch.empty(units, len(drawn), dtype=torch.int32, device=mass.device)
    closed, slash, top_k, top_p = (levels.contiguous() for levels in maps)
    picture_kernel[(units * len(drawn),)](
        mass,
        rows.contiguous(),
        drawn,
        closed,
        slash,
        top_k,
        top_p,
        single,
        picture,
        masks,
        positions,
        closed.stride(0) if closed.shape[0] > 1 else 0,
        heads,
        count,
        len(drawn),
        slash.shape[2],
        key_blocks,
        columns,
        mask_columns,
        position,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        COLUMNS=_power_of_two(columns),
        MASK_COLUMNS=_power_of_two(mask_columns),
        POOL=pool,
        MASK_POOL=mask_pool,
        PARTS=min(PICTURE_PARTS, 1 << (pool - 1).bit_length()),
        MASK_PARTS=min(PICTURE_PARTS, 1 << (mask_pool - 1).bit_length()),
        LAST=last,
        num_warps=4,
    )
    return picture, masks, positions
