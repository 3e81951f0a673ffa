"""Pictures by tensor operations."""

from __future__ import annotations

import torch
import torch.nn.functional as F

from routesparse.kernels.level_maps.naive import NEVER
from routesparse.kernels.retained_mass.contract import RankedColumns


def pictures(
    mass: torch.Tensor,
    rows: torch.Tensor,
    drawn: torch.Tensor,
    maps: tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor],
    columns: RankedColumns,
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
    maps: level maps of the four families, the first [B or 1, 1, M, N], the others [B, H, M, N]; columns: of the second.
    position: key position of row 0. last: the value of a cell that is never read. Two families share a byte of the
    masks, four bits each. Masses and levels are pooled by maximum and minimum: a mean would wash out lines.
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
    for family, level_map in enumerate(maps):
        levels = level_map.expand(batch, heads, -1, -1).gather(2, query_block)
        if family == 1:
            # A block of which only single columns are read counts from their smallest level on.
            single = single_levels(columns.ranked, columns.levels, key_blocks, block_k)
            levels = torch.minimum(levels, single.unsqueeze(2))
        padded = F.pad(levels.masked_fill(hidden, NEVER), (0, -key_blocks % mask_pool), value=NEVER)
        seen.append(padded.unflatten(-1, (-1, mask_pool)).amin(-1).clamp_max(last).flatten(0, 1))
    masks = torch.stack([seen[0] | seen[1] << 4, seen[2] | seen[3] << 4], 1)
    return picture, masks, (rows + position).flatten(0, 1).int()


def single_levels(columns: torch.Tensor, levels: torch.Tensor, key_blocks: int, block_k: int) -> torch.Tensor:
    """The smallest level that reads a column of each KV block singly, NEVER for none: uint8 [B, H, N].

    columns int64 [B, H, V] best first, levels uint8 [V] of each rank.
    """
    single = torch.full((*columns.shape[:2], key_blocks), NEVER, dtype=torch.uint8, device=columns.device)
    return single.scatter_reduce_(-1, columns // block_k, levels.expand(columns.shape), "amin")
