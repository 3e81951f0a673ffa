"""The probe's passes on Triton: one launch for all heads, nothing of size rows x keys in memory, no host sync.

Each function has its slow twin in the engine (``probe.py``, ``descriptors.py``, ``builders/``), which is what a CPU
runs. Triton is imported inside the functions: this module loads on a machine without it.
"""

from __future__ import annotations

import math
from typing import Any, NamedTuple

import torch

# As measured on an H200.
ROW_WIDTH = 1_024  # KV blocks of a row that a warp takes
RECENT_ROWS = 64
RECENT_LAUNCH = (64, 2, 4, 3)  # keys of a tile, heads, warps, stages
RECENT_TILE_BYTES = 16_384  # of keys; they and the rows must fit the shared memory of smaller GPUs
RECENT_LANES = 16  # keys whose masses by offset are added: those of a warp
RECENT_TILES_PER_PROGRAM = 64


class RowMass(NamedTuple):
    """What the block masses of each probe row add up to, float32 [B, H, P]."""

    lse: torch.Tensor  # natural log, sink included
    sink_mass: torch.Tensor
    entropy: torch.Tensor  # nats, over KV blocks
    local: torch.Tensor  # mass of the last local_tokens
    spread: torch.Tensor  # [B, H, P, octaves], mass by octave of distance in KV blocks; 0: the first block
    finite: torch.Tensor  # bool scalar: every log-sum-exp of a row behind the padding is


def row_mass(
    block_lse: torch.Tensor,
    sinks: torch.Tensor | None,
    positions: torch.Tensor,
    first_keys: torch.Tensor,
    block_k: int,
    local_tokens: int,
) -> RowMass:
    """Sums of block log-sum-exps [B, H, P, N], which become block masses in place.

    positions int64 [B, H, P] of the rows; first_keys int64 [B].
    """
    from routesparse.kernels.probe_kernel import row_mass_kernel

    batch, heads, count, key_blocks = block_lse.shape
    octaves = key_blocks.bit_length() + 2

    def empty(*shape: int) -> torch.Tensor:
        return torch.empty(batch, heads, count, *shape, dtype=torch.float32, device=block_lse.device)

    lse = empty()
    sink_mass = torch.zeros_like(lse) if sinks is None else empty()
    finite = torch.ones((), dtype=torch.bool, device=block_lse.device)
    found = RowMass(lse, sink_mass, empty(), empty(), empty(octaves), finite)
    width = _power_of_two(key_blocks)
    row_mass_kernel[(lse.numel(),)](
        block_lse,
        *found[:5],
        # Triton reads a bool tensor as bytes.
        finite.view(torch.uint8),
        lse if sinks is None else sinks.detach().float().contiguous(),
        positions.contiguous(),
        first_keys,
        heads,
        count,
        key_blocks,
        block_k,
        local_tokens // block_k,
        N=width,
        OCTAVES=octaves,
        SINKS=sinks is not None,
        num_warps=max(1, min(16, width // ROW_WIDTH)),
    )
    return found


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
    """Column sums [B, H, keys] (offsets >= local_offsets) and band masses [B, H, N] of the last rows' softmax.

    lse float32 [B, H, R] of rows q[first_row : first_row + R], which sit at positions keys - R .. keys - 1.
    """
    from routesparse.kernels.recent_kernel import band_kernel, recent_kernel

    batch, heads, count = lse.shape
    width, together, warps, stages = RECENT_LAUNCH
    width = max(width, block_k)
    group = heads // k.shape[1]
    # The rows of several heads beside a few tiles of keys would not fit where either is large.
    large = width * _power_of_two(q.shape[-1]) * q.element_size() > RECENT_TILE_BYTES
    together, stages = (1, 2) if large else (math.gcd(together, group), stages)
    lanes = width // RECENT_LANES
    tiles, key_blocks = -(-keys // width), -(-keys // block_k)
    columns = torch.empty(batch, heads, keys, dtype=torch.float32, device=q.device)
    bands = torch.empty(batch, heads, key_blocks, dtype=torch.float32, device=q.device)
    for start in range(0, count, RECENT_ROWS):
        rows = min(RECENT_ROWS, count - start)
        first = keys - count + start
        # Steps of block_k offsets: that of row 0 and key 0 of the first tile, and the steps that a tile meets.
        own, inside = divmod(first - phase, block_k)
        lowest, highest = (inside - (width - 1)) // block_k, (inside + RECENT_ROWS - 1) // block_k
        steps = highest - lowest + 1
        parts = torch.empty(batch, heads, tiles, steps + 1, lanes, dtype=torch.float32, device=q.device)
        recent_kernel[(-(-tiles // RECENT_TILES_PER_PROGRAM), batch * heads // together)](
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
            RECENT_TILES_PER_PROGRAM,
            local_offsets,
            (lowest + 1) * block_k - inside,
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
            **_numbers(q),
            num_warps=warps,
            num_stages=stages,
        )
        band_kernel[(-(-key_blocks // 32), batch * heads)](
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


def block_means(
    x: torch.Tensor,
    first: int,
    rows: int,
    block: int,
    low: torch.Tensor | None = None,
    table: torch.Tensor | None = None,
    place: int = 0,
) -> torch.Tensor:
    """Means of blocks of x[:, :, first : first + rows], of rows from low int64 [B] on: float32 [B, H, blocks, D].

    table[place]: x's address (see ``lse_triton.block_lse``).
    """
    from routesparse.kernels.probe_kernel import block_means_kernel

    batch, heads, _, head_size = x.shape
    blocks = -(-rows // block)
    out = torch.empty(batch, heads, blocks, head_size, dtype=torch.float32, device=x.device)
    block_means_kernel[(blocks, batch * heads)](
        x,
        out if table is None else table,
        out,
        out if low is None else low,
        *x.stride(),
        heads,
        first,
        rows,
        blocks,
        BLOCK=block,
        HEAD=head_size,
        HEAD_PADDED=_power_of_two(head_size),
        LOW=low is not None,
        PLACE=-1 if table is None else place,
        # Warps that share a block's rows have to wait for each other: one, where it can hold them.
        num_warps=max(1, min(4, block * _power_of_two(head_size) * x.element_size() // 32_768)),
    )
    return out


def stamp(out: torch.Tensor, place: int) -> None:
    """Write the GPU's clock, in nanoseconds, to out[place] (int64) when the work before is done."""
    from routesparse.kernels.probe_kernel import stamp_kernel

    stamp_kernel[(1,)](out, place, num_warps=1)


def _numbers(q: torch.Tensor) -> dict[str, Any]:
    """What every kernel with a matrix product needs to know of the queries."""
    import triton

    # The interpreter's bf16 matrix product is silently wrong.
    interpreted = bool(triton.knobs.runtime.interpret)
    return {
        "HEAD": q.shape[-1],
        "HEAD_PADDED": _power_of_two(q.shape[-1]),
        "UPCAST": interpreted,
        "PRECISION": "ieee" if q.dtype == torch.float32 else "tf32",
    }


def _power_of_two(size: int) -> int:
    return max(16, 1 << (size - 1).bit_length())
