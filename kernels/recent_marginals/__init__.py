"""What the last rows read by column and by diagonal band (paper section 3.2; MInference's vertical-slash estimate)."""

from __future__ import annotations

import math

import torch

from routesparse.kernels.common import dispatched, launch, power_of_two
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits
from routesparse.kernels.recent_marginals import naive

RECENT_ROWS = 64
RECENT_LAUNCH = (64, 2, 4, 3)  # keys of a tile, heads, warps, stages
RECENT_TILE_BYTES = 16_384  # of keys; they and the rows must fit the shared memory of smaller GPUs
RECENT_LANES = 16  # keys whose masses by offset are added: those of a warp
RECENT_TILES_PER_PROGRAM = 64  # at most; fewer where that leaves fewer programs than RECENT_PROGRAMS
RECENT_PROGRAMS = 256


@dispatched(naive.recent_marginals)
def recent_marginals(
    logits: Logits,
    lse: torch.Tensor,
    geometry: SegmentGeometry,
    *,
    first_row: int,
    local_offsets: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """See the naive twin."""
    from routesparse.kernels.recent_marginals.kernel import band_kernel, recent_kernel

    q, keys, block_k = logits.q, geometry.keys, geometry.block_k
    batch, heads, count = lse.shape
    width, together, warps, stages = RECENT_LAUNCH
    width = max(width, block_k)
    # The rows of several heads beside a few tiles of keys would not fit where either is large.
    large = width * power_of_two(q.shape[-1]) * q.element_size() > RECENT_TILE_BYTES
    together, stages = (1, 2) if large else (math.gcd(together, logits.group), stages)
    lanes = width // RECENT_LANES
    tiles, key_blocks = -(-keys // width), geometry.key_blocks
    programs = -(-RECENT_PROGRAMS * together // (batch * heads))  # along the keys
    chunk = min(RECENT_TILES_PER_PROGRAM, -(-tiles // programs))
    columns = torch.empty(batch, heads, keys, dtype=torch.float32, device=q.device)
    bands = torch.empty(batch, heads, key_blocks, dtype=torch.float32, device=q.device)
    for start in range(0, count, RECENT_ROWS):
        rows = min(RECENT_ROWS, count - start)
        first = keys - count + start
        # Steps of block_k offsets: that of row 0 and key 0 of the first tile, and the steps that a tile meets.
        own, inside = divmod(first - geometry.position % block_k, block_k)
        lowest, highest = (inside - (width - 1)) // block_k, (inside + RECENT_ROWS - 1) // block_k
        steps, first_edge = highest - lowest + 1, (lowest + 1) * block_k - inside
        parts = torch.empty(batch, heads, tiles, steps + 1, lanes, dtype=torch.float32, device=q.device)
        launch(
            recent_kernel,
            (-(-tiles // chunk), batch * heads // together),
            logits.arguments(),
            lengths=("first_row", "first", "tiles", "first_edge"),
            lse=lse[..., start : start + rows].contiguous(),
            column=columns,
            part=parts,
            first_key=geometry.first_keys,
            groups=logits.group // together,
            first_row=first_row + start,
            count=rows,
            first=first,
            keys=keys,
            tiles=tiles,
            chunk=chunk,
            local_offsets=local_offsets,
            first_edge=first_edge,
            ROWS=RECENT_ROWS,
            HEADS=together,
            KEYS=width,
            LANES=RECENT_LANES,
            STEP=block_k,
            STEPS=steps,
            ADD=start > 0,
            num_warps=warps,
            num_stages=stages,
        )
        launch(
            band_kernel,
            (-(-key_blocks // 32), batch * heads),
            lengths=("tiles",),
            part=parts,
            band=bands,
            tiles=tiles,
            key_blocks=key_blocks,
            nearest=own + lowest,
            PARTS=lanes,
            RATIO=width // block_k,
            STEP=block_k,
            STEPS=steps,
            LAST=geometry.block_q // block_k,
            N=32,
            ADD=start > 0,
            num_warps=4,
        )
    return columns, bands
