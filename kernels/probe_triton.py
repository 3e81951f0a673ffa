"""The probe's passes on Triton: one launch for all heads, nothing of size rows x keys in memory, no host sync.

Each function has its slow twin in the engine (``probe.py``, ``descriptors.py``, ``builders/``), which is what a CPU
runs. Triton is imported inside the functions: this module loads on a machine without it.
"""

from __future__ import annotations

from typing import Any

import torch

# As measured on an H200.
LSE_LAUNCH = (64, 2, 4, 3)  # rows and KV blocks of a tile, warps, stages
LSE_BLOCKS_PER_PROGRAM = 128
LSE_TILE_BYTES = 32_768  # of keys; a few of them and the rows must fit the shared memory of smaller GPUs
RECENT_ROWS = 64
RECENT_LAUNCH = (64, 4, 3)  # keys of a tile, warps, stages
RECENT_TILES_PER_PROGRAM = 32


def block_lse(
    q: torch.Tensor,
    k: torch.Tensor,
    positions: torch.Tensor,
    first_keys: torch.Tensor | None,
    *,
    shift: int,
    keys: int,
    block_k: int,
    scale: float,
    softcap: float | None,
    table: torch.Tensor | None = None,
) -> torch.Tensor:
    """Log-sum-exp of each (row, KV block) over the keys that the row sees: float32 [B, H, P, N], -inf where none.

    q [B, H, n, D], k [B, Hkv, >= keys, D]; positions int64 [B, H, P]: key position of each row, whose query is
    q[position - shift]. first_keys int64 [B]: keys before it are hidden. table int64 [2]: addresses of q and k that
    count instead of those of the arguments (a captured graph is replayed on other tensors of the same layout).
    """
    from routesparse.kernels.probe_kernel import block_lse_kernel

    batch, heads, count = positions.shape
    kv_heads = k.shape[1]
    group = heads // kv_heads
    key_blocks = -(-keys // block_k)
    out = torch.empty(batch, heads, count, key_blocks, dtype=torch.float32, device=q.device)
    # Rows in order of position: a tile of rows sees a prefix of the keys.
    position, order = positions.reshape(batch, kv_heads, group * count).sort(-1)
    rows, blocks, warps, stages = LSE_LAUNCH
    if blocks * block_k * _power_of_two(q.shape[-1]) * q.element_size() > LSE_TILE_BYTES:
        blocks = 1
    grid = (-(-key_blocks // LSE_BLOCKS_PER_PROGRAM), -(-group * count // rows), batch * kv_heads)
    block_lse_kernel[grid](
        q,
        k,
        out if table is None else table,
        out,
        order,
        position,
        positions if first_keys is None else first_keys,
        *q.stride(),
        *k.stride(),
        kv_heads,
        group,
        count,
        keys,
        key_blocks,
        LSE_BLOCKS_PER_PROGRAM,
        shift,
        scale,
        softcap or 0.0,
        ROWS=rows,
        BLOCK=block_k,
        BLOCKS=blocks,
        KEY_START=first_keys is not None,
        SOFTCAP=bool(softcap),
        INDIRECT=table is not None,
        **_numbers(q),
        num_warps=warps,
        num_stages=stages,
    )
    return out


def row_mass(block_lse: torch.Tensor, sinks: torch.Tensor | None) -> tuple[torch.Tensor, torch.Tensor]:
    """(lse, sink_mass) float32 [B, H, P] of block log-sum-exps [B, H, P, N], which become block masses in place."""
    from routesparse.kernels.probe_kernel import row_mass_kernel

    _, heads, count, key_blocks = block_lse.shape
    lse = torch.empty(block_lse.shape[:3], dtype=torch.float32, device=block_lse.device)
    sink_mass = torch.zeros_like(lse)
    width = _power_of_two(key_blocks)
    row_mass_kernel[(lse.numel(),)](
        block_lse,
        lse,
        sink_mass,
        lse if sinks is None else sinks.detach().float().contiguous(),
        heads,
        count,
        key_blocks,
        N=width,
        SINKS=sinks is not None,
        num_warps=_warps(width),
    )
    return lse, sink_mass


def describe(
    mass: torch.Tensor, positions: torch.Tensor, block_k: int, local_tokens: int
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    """(entropy, local band [B, H, P], mass by octave of distance [B, H, P, octaves]) of mass float32 [B, H, P, N]."""
    from routesparse.kernels.probe_kernel import describe_kernel

    key_blocks = mass.shape[-1]
    octaves = key_blocks.bit_length() + 2
    entropy = torch.empty(mass.shape[:3], dtype=torch.float32, device=mass.device)
    local = torch.empty_like(entropy)
    spread = torch.empty(*mass.shape[:3], octaves, dtype=torch.float32, device=mass.device)
    width = _power_of_two(key_blocks)
    describe_kernel[(entropy.numel(),)](
        mass,
        positions.contiguous(),
        entropy,
        local,
        spread,
        key_blocks,
        block_k,
        local_tokens // block_k,
        octaves,
        N=width,
        OCTAVES=_power_of_two(octaves),
        num_warps=_warps(width),
    )
    return entropy, local, spread


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
    width, warps, stages = RECENT_LAUNCH
    width = max(width, block_k)
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
        parts = torch.empty(batch, heads, tiles, steps, 2, width, dtype=torch.float32, device=q.device)
        recent_kernel[(-(-tiles // RECENT_TILES_PER_PROGRAM), batch * heads)](
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
            heads // k.shape[1],
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
            KEYS=width,
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
            KEYS=width,
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

    table[place]: x's address (see block_lse).
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
        num_warps=4,
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


def _warps(width: int) -> int:
    return max(1, min(16, width // 512))
