"""Level maps (paper section 3.1): for each query and KV block the smallest budget of a family that reads it.

uint8 [B, H, M, N], NEVER where no budget does. Budgets of a family are nested, so level b reads the blocks with
``map <= b``. The sink block, the diagonal blocks and ``local_blocks`` before them have level 0.
"""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, knows_ptx, launch, power_of_two, variant
from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.level_maps import naive
from routesparse.kernels.level_maps.naive import MAX_LEVELS
from routesparse.kernels.rules import NEVER, SCORE_BINS

__all__ = ["MAX_LEVELS", "NEVER", "band_levels", "readers", "score_levels", "slash_levels"]

SCORE_CHUNK = 128  # blocks of a row that a warp bins at a time; as measured on an H200
SLASH_CHUNK = 256
BANDS_OF_PROGRAM, BANDS_COMPARED = 16, 256  # at a time
READERS_LAUNCH = (64, 4, 256)  # query blocks of a program, those loaded at once, and KV blocks


@dispatched(naive.score_levels)
def score_levels(
    scores: torch.Tensor,
    question: torch.Tensor,
    geometry: SegmentGeometry,
    budgets: torch.Tensor,
    floors: torch.Tensor,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """See the naive twin."""
    from routesparse.kernels.level_maps.score_kernel import score_levels_kernel

    scores = scores.contiguous()
    batch, heads, query_blocks, key_blocks = scores.shape
    if max(len(budgets), len(floors)) > MAX_LEVELS:
        raise ValueError(f"{len(budgets)} budgets and {len(floors)} floors; {MAX_LEVELS} of each at most")
    top_k = torch.empty(scores.shape, dtype=torch.uint8, device=scores.device)
    floor = torch.empty_like(top_k)
    rows = (batch, heads, query_blocks)
    top_k_count = torch.empty(*rows, len(budgets), dtype=torch.int32, device=scores.device)
    floor_count = torch.empty(*rows, len(floors), dtype=torch.int32, device=scores.device)
    ptx = knows_ptx()
    launch(
        score_levels_kernel,
        (batch * heads * query_blocks,),
        geometry.arguments(),
        {"budgets": len(budgets)},
        scores=scores,
        question=question.contiguous(),
        top_k=top_k,
        floor=floor,
        top_k_count=top_k_count,
        floor_count=floor_count,
        budgets=budgets,
        floors=floors,
        heads=heads,
        CHUNK=max(32 if ptx else 1, min(SCORE_CHUNK, power_of_two(key_blocks))),
        BITS=SCORE_BINS.bit_length() - 1,
        FLOORS=len(floors),
        PTX=ptx,
        num_warps=1,
    )
    return top_k, floor, top_k_count, floor_count


@dispatched(naive.band_levels)
def band_levels(bands: torch.Tensor, budgets: torch.Tensor) -> torch.Tensor:
    """See the naive twin; masses are not negative."""
    from routesparse.kernels.level_maps.kernel import band_levels_kernel

    batch, heads, key_blocks = bands.shape
    out = torch.empty(bands.shape, dtype=torch.uint8, device=bands.device)
    variant(band_levels_kernel, key_blocks=key_blocks)[(-(-key_blocks // BANDS_OF_PROGRAM), batch * heads)](
        bands.contiguous(),
        budgets,
        out,
        key_blocks,
        BUDGETS=len(budgets),
        SOME=BANDS_OF_PROGRAM,
        N=BANDS_COMPARED,
        num_warps=4,
    )
    return out


@dispatched(naive.slash_levels)
def slash_levels(
    band_levels: torch.Tensor, geometry: SegmentGeometry, *, from_last: bool = False
) -> torch.Tensor:
    """See the naive twin."""
    from routesparse.kernels.level_maps.kernel import slash_levels_kernel

    batch, heads, key_blocks = band_levels.shape
    out = torch.empty(
        batch, heads, geometry.query_blocks, key_blocks, dtype=torch.uint8, device=band_levels.device
    )
    launch(
        slash_levels_kernel,
        (batch * heads * geometry.query_blocks,),
        geometry.arguments(),
        band_levels=band_levels.contiguous(),
        levels=out,
        heads=heads,
        FROM_LAST=from_last,
        N=min(SLASH_CHUNK, power_of_two(key_blocks)),
        num_warps=1,
    )
    return out


@dispatched(naive.readers)
def readers(levels: torch.Tensor, depth: int, geometry: SegmentGeometry) -> torch.Tensor:
    """See the naive twin."""
    from routesparse.kernels.level_maps.kernel import readers_kernel

    levels = levels.contiguous()
    batch, heads, _, key_blocks = levels.shape
    out = torch.zeros(batch, heads, depth, key_blocks, dtype=torch.int32, device=levels.device)
    chunk, rows, blocks = READERS_LAUNCH
    grid = (-(-key_blocks // blocks), -(-geometry.body_blocks // chunk), batch * heads)
    launch(
        readers_kernel,
        grid,
        geometry.arguments(),
        levels=levels,
        readers=out,
        DEPTH=depth,
        CHUNK=chunk,
        ROWS=rows,
        N=blocks,
        num_warps=1,
    )
    return out
