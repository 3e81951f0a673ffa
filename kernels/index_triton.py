"""The builders on Triton: level maps, static shapes, no host sync.

Each function has its slow twin in the engine (``method/families/``), which is what a CPU runs; only ``score_levels``
differs from its twin, by the width of a bin. Triton is imported inside the functions.

Block budgets end at edges of 256 score bins instead of at a rank: no sort is needed, and top-k never exceeds its
budget.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.kernels.probe_triton import _power_of_two

SCORE_BINS = 256
SCORE_CHUNK = 256  # blocks of a row that a warp bins at a time; as measured on an H200
SLASH_CHUNK = 256
MAX_LEVELS = 16


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
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor, torch.Tensor]:
    """Top-k and top-p level maps uint8 [B, H, M, N] of pooled scores [B, H, M, N] (before the soft cap).

    And how many blocks each query block reads at each level, int32 [B, H, M, levels] of either family.
    budgets int32 [levels], blocks a row, forced ones included; shares float32 [levels]. A row's scores are cut into
    SCORE_BINS equal bins: a bin belongs to a top-k level where it fits as a whole, and to a top-p level while the
    weight of the better bins is below the share.
    """
    from routesparse.kernels.score_kernel import score_levels_kernel

    scores = scores.contiguous()
    batch, heads, query_blocks, key_blocks = scores.shape
    if max(len(budgets), len(shares)) > MAX_LEVELS:
        raise ValueError(f"{len(budgets)} budgets and {len(shares)} shares; {MAX_LEVELS} of each at most")
    top_k = torch.empty(scores.shape, dtype=torch.uint8, device=scores.device)
    top_p = torch.empty_like(top_k)
    rows = (batch, heads, query_blocks)
    top_k_count = torch.empty(*rows, len(budgets), dtype=torch.int32, device=scores.device)
    top_p_count = torch.empty(*rows, len(shares), dtype=torch.int32, device=scores.device)
    ptx = _knows_ptx()
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
        len(budgets),
        len(shares),
        softcap or 0.0,
        BLOCK_Q=place.block_q,
        BLOCK_K=place.block_k,
        LOCAL_BLOCKS=place.local_blocks,
        CHUNK=max(32 if ptx else 1, min(SCORE_CHUNK, _power_of_two(key_blocks))),
        BITS=SCORE_BINS.bit_length() - 1,
        SOFTCAP=bool(softcap),
        PTX=ptx,
        num_warps=1,
    )
    return top_k, top_p, top_k_count, top_p_count


def slash_levels(band_levels: torch.Tensor, place: Place) -> torch.Tensor:
    """Level map uint8 [B, H, M, N] of bands: band_levels uint8 [B, H, N] by block distance."""
    from routesparse.kernels.map_kernel import slash_levels_kernel

    batch, heads, key_blocks = band_levels.shape
    out = torch.empty(
        batch, heads, place.query_blocks, key_blocks, dtype=torch.uint8, device=band_levels.device
    )
    slash_levels_kernel[(batch * heads * place.query_blocks,)](
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
        N=min(SLASH_CHUNK, _power_of_two(key_blocks)),
        num_warps=1,
    )
    return out


def closed_levels(budgets: torch.Tensor, place: Place) -> torch.Tensor:
    """Level map uint8 [B, 1, M, N] of windows: budgets int32 [levels], blocks up to the diagonal."""
    from routesparse.kernels.map_kernel import closed_levels_kernel

    batch, key_blocks = len(place.first_keys), place.key_blocks
    out = torch.empty(batch, 1, place.query_blocks, key_blocks, dtype=torch.uint8, device=budgets.device)
    width = min(2_048, _power_of_two(key_blocks))
    closed_levels_kernel[(batch * place.query_blocks, -(-key_blocks // width))](
        budgets,
        out,
        place.first_keys,
        len(budgets),
        place.query_blocks,
        key_blocks,
        place.position,
        place.keys,
        BLOCK_Q=place.block_q,
        BLOCK_K=place.block_k,
        LOCAL_BLOCKS=place.local_blocks,
        N=width,
        num_warps=4,
    )
    return out


def _knows_ptx() -> bool:
    """Whether kernels run on an NVIDIA GPU; Triton's interpreter takes a slower way round."""
    import triton

    return torch.version.cuda is not None and not triton.knobs.runtime.interpret
