"""Pictures by tensor operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from routesparse.kernels.geometry import FamilyMaps
from routesparse.kernels.rules import NEVER


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
    """Pictures of U = B * H units: (mass float16 [U, R, ceil(N / pool)], masks uint8 [U, ceil(F / 2), R, ceil(N /
    mask_pool)], positions int32 [U, R] of the rows).

    mass float32 [B, H, P, N]; rows int64 [B, H, P] in the segment; drawn int64 [R]: the probe rows of a picture.
    position: key position of row 0. last: the value of a cell that is never read. Two families share a byte of the
    masks, four bits each; beside the last of an odd number stands ``last``. Masses and levels are pooled by maximum and
    minimum: a mean would wash out lines.
    """
    rows = rows.index_select(2, drawn)
    picture = mass.index_select(2, drawn).half().flatten(0, 1)
    picture = F.pad(picture, (0, -picture.shape[-1] % pool)).unflatten(-1, (-1, pool)).amax(-1)
    batch, heads, _ = rows.shape
    key_blocks = mass.shape[-1]
    reach = (rows + position).unsqueeze(-1) // block_k
    hidden = torch.arange(key_blocks, device=rows.device) > reach
    query_block = (rows // block_q).unsqueeze(-1).expand(-1, -1, -1, key_blocks)
    seen = []
    for family, level_map in enumerate(families.maps):
        levels = level_map.expand(batch, heads, -1, -1).gather(2, query_block)
        if families.columns is not None and family == families.columns_of:
            # A block of which only single columns are read counts from their smallest level on.
            single = single_levels(families.columns.ranked, families.columns.levels, key_blocks, block_k)
            levels = torch.minimum(levels, single.unsqueeze(2))
        padded = F.pad(levels.masked_fill(hidden, NEVER), (0, -key_blocks % mask_pool), value=NEVER)
        seen.append(padded.unflatten(-1, (-1, mask_pool)).amin(-1).clamp_max(last).flatten(0, 1))
    if len(seen) % 2:
        seen.append(torch.full_like(seen[0], last))
    masks = torch.stack([low | high << 4 for low, high in zip(seen[0::2], seen[1::2], strict=True)], 1)
    return picture, masks, (rows + position).flatten(0, 1).int()


def single_levels(columns: torch.Tensor, levels: torch.Tensor, key_blocks: int, block_k: int) -> torch.Tensor:
    """The smallest level that reads a column of each KV block singly, NEVER for none: uint8 [B, H, N].

    columns int64 [B, H, V] best first, levels uint8 [V] of each rank.
    """
    single = torch.full((*columns.shape[:2], key_blocks), NEVER, dtype=torch.uint8, device=columns.device)
    return single.scatter_reduce_(-1, columns // block_k, levels.expand(columns.shape), "amin")
