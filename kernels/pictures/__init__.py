"""Pictures of a probe for people: block masses of some rows, and what each budget of each family reads."""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, launch, power_of_two, variant
from routesparse.kernels.geometry import FamilyMaps
from routesparse.kernels.pictures import naive

PICTURE_PARTS = 4  # blocks of a column that a picture's program loads at once


def single_levels(columns: torch.Tensor, counts: torch.Tensor, key_blocks: int, block_k: int) -> torch.Tensor:
    """The smallest level that reads a column of each KV block singly, 255 for none: uint8 [B, H, N].

    columns int64 [B, H, V] best first; counts int32 [levels], rising: how many of them each level holds.
    """
    from routesparse.kernels.pictures.kernel import single_kernel

    batch, heads, width = columns.shape
    single = torch.empty(batch, heads, key_blocks, dtype=torch.uint8, device=columns.device)
    variant(single_kernel, width=width, key_blocks=key_blocks)[(batch * heads,)](
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


@dispatched(naive.pictures)
def pictures(
    mass: torch.Tensor,
    rows: torch.Tensor,
    drawn: torch.Tensor,
    families: FamilyMaps,
    *,
    position: int,
    block_q: int,
    block_k: int,
    pool: int,
    mask_pool: int,
    last: int,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the naive twin."""
    from routesparse.kernels.pictures.kernel import picture_kernel

    batch, heads, count, key_blocks = mass.shape
    columns = families.columns
    single = drawn if columns is None else single_levels(columns.ranked, columns.counts, key_blocks, block_k)
    units, width, mask_columns = batch * heads, -(-key_blocks // pool), -(-key_blocks // mask_pool)
    picture = torch.empty(units, len(drawn), width, dtype=torch.float16, device=mass.device)
    pairs = -(-len(families.maps) // 2)
    masks = torch.empty(units, pairs, len(drawn), mask_columns, dtype=torch.uint8, device=mass.device)
    positions = torch.empty(units, len(drawn), dtype=torch.int32, device=mass.device)
    launch(
        picture_kernel,
        (units * len(drawn),),
        families.arguments(batch, heads),
        {"drawn": len(drawn)},
        lengths=("columns", "mask_columns"),
        mass=mass,
        rows=rows.contiguous(),
        drawn=drawn,
        single=single,
        picture=picture,
        masks=masks,
        positions=positions,
        heads=heads,
        count=count,
        query_blocks=families.maps[0].shape[2],
        key_blocks=key_blocks,
        columns=width,
        mask_columns=mask_columns,
        position=position,
        pool=pool,
        mask_pool=mask_pool,
        BLOCK_Q=block_q,
        BLOCK_K=block_k,
        COLUMNS=power_of_two(width),
        MASK_COLUMNS=power_of_two(mask_columns),
        PARTS=min(PICTURE_PARTS, 1 << (pool - 1).bit_length()),
        MASK_PARTS=min(PICTURE_PARTS, 1 << (mask_pool - 1).bit_length()),
        LAST=last,
        num_warps=4,
    )
    return picture, masks, positions
