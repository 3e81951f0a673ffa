"""What the last rows read by column and by diagonal band (paper section 3.2; MInference's vertical-slash estimate)."""

from __future__ import annotations

import math

import torch

from routesparse.kernels.common import dispatched, power_of_two, product_constants, variant
from routesparse.kernels.recent_marginals import naive

RECENT_ROWS = 64
RECENT_LAUNCH = (64, 2, 4, 3)  # keys of a tile, heads, warps, stages
RECENT_TILE_BYTES = 16_384  # of keys; they and the rows must fit the shared memory of smaller GPUs
RECENT_LANES = 16  # keys whose masses by offset are added: those of a warp
RECENT_TILES_PER_PROGRAM = 64  # at most; fewer where that leaves fewer programs than RECENT_PROGRAMS
RECENT_PROGRAMS = 256


@dispatched(naive.recent_marginals)
def recent_marginals(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    first_keys: torch.Tensor,
    *,
    first_row: int,
    keys: int,
    local_offsets: int,
    phase: int,
    block_q: int,
    block_k: int,
    scale: float,
    softcap: float | None,
    table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the naive twin."""
    from routesparse.kernels.recent_marginals.kernel import band_kernel, recent_kernel

    batch, heads, count = lse.shape
    width, together, warps, stages = RECENT_LAUNCH
    width = max(width, block_k)
    group = heads // k.shape[1]
    # The rows of several heads beside a few tiles of keys would not fit where either is large.
    large = width * power_of_two(q.shape[-1]) * q.element_size() > RECENT_TILE_BYTES
    together, stages = (1, 2) if large else (math.gcd(together, group), stages)
    lanes = width // RECENT_LANES
    tiles, key_blocks = -(-keys // width), -(-keys // block_k)
    programs = -(-RECENT_PROGRAMS * together // (batch * heads))  # along the keys
    chunk = min(RECENT_TILES_PER_PROGRAM, -(-tiles // programs))
    columns = torch.empty(batch, heads, keys, dtype=torch.float32, device=q.device)
    bands = torch.empty(batch, heads, key_blocks, dtype=torch.float32, device=q.device)
    for start in range(0, count, RECENT_ROWS):
        rows = min(RECENT_ROWS, count - start)
        first = keys - count + start
        # Steps of block_k offsets: that of row 0 and key 0 of the first tile, and the steps that a tile meets.
        own, inside = divmod(first - phase, block_k)
        lowest, highest = (inside - (width - 1)) // block_k, (inside + RECENT_ROWS - 1) // block_k
        steps, first_edge = highest - lowest + 1, (lowest + 1) * block_k - inside
        parts = torch.empty(batch, heads, tiles, steps + 1, lanes, dtype=torch.float32, device=q.device)
        variant(
            recent_kernel,
            first_row=first_row + start,
            first=first,
            keys=keys,
            tiles=tiles,
            first_edge=first_edge,
        )[(-(-tiles // chunk), batch * heads // together)](
            q,
            k,
            columns if table is None else table,
            lse[..., start : start + rows].contiguous(),
            columns,
            parts,
            first_keys,
            *q.stride(),
            *k.stride(),
            heads,
            group // together,
            first_row + start,
            rows,
            first,
            keys,
            tiles,
            chunk,
            local_offsets,
            first_edge,
            scale,
            softcap or 0.0,
            ROWS=RECENT_ROWS,
            HEADS=together,
            KEYS=width,
            LANES=RECENT_LANES,
            STEP=block_k,
            STEPS=steps,
            ADD=start > 0,
            SOFTCAP=bool(softcap),
            INDIRECT=table is not None,
            **product_constants(q),
            num_warps=warps,
            num_stages=stages,
        )
        variant(band_kernel, tiles=tiles, key_blocks=key_blocks)[(-(-key_blocks // 32), batch * heads)](
            parts,
            bands,
            tiles,
            key_blocks,
            own + lowest,
            PARTS=lanes,
            RATIO=width // block_k,
            STEP=block_k,
            STEPS=steps,
            LAST=block_q // block_k,
            N=32,
            ADD=start > 0,
            num_warps=4,
        )
    return columns, bands
