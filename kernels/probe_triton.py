"""The probe's passes on Triton: one launch for all heads, nothing of size rows x keys in memory, no host sync.

Each function has its slow twin in the engine (``probe.py``, ``descriptors.py``, ``builders/``), which is what a CPU
runs. Triton is imported inside the functions: this module loads on a machine without it.
"""

from __future__ import annotations

from typing import Any

import torch

RECENT_BLOCK = 64  # rows and keys of a tile of the recent pass
BLOCKS_PER_PROGRAM = 32
LSE_BLOCKS_PER_PROGRAM = 64
LSE_LAUNCH = (128, 8, 3)  # rows of a tile, warps, stages; as measured on an H200
RECENT_LAUNCH = (4, 3)  # warps, stages


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
    rows, warps, stages = LSE_LAUNCH
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
    scale: float,
    softcap: float | None,
    table: torch.Tensor | None = None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column sums (offsets >= local_offsets) and diagonal sums (by offset) of the last rows' softmax: [B, H, keys].

    lse float32 [B, H, R] of rows q[first_row : first_row + R], which sit at positions keys - R .. keys - 1.
    """
    from routesparse.kernels.probe_kernel import recent_kernel

    batch, heads, count = lse.shape
    tiles = -(-keys // RECENT_BLOCK)
    columns = torch.zeros(batch, heads, keys, dtype=torch.float32, device=q.device)
    diagonals = torch.zeros_like(columns)
    for start in range(0, count, RECENT_BLOCK):
        rows = min(RECENT_BLOCK, count - start)
        first = keys - count + start
        column = torch.empty_like(columns)
        straight = torch.empty(batch, heads, tiles, RECENT_BLOCK, dtype=torch.float32, device=q.device)
        wrapped = torch.empty_like(straight)
        recent_kernel[(-(-tiles // BLOCKS_PER_PROGRAM), batch * heads)](
            q,
            k,
            column if table is None else table,
            lse[..., start : start + rows].contiguous(),
            column,
            straight,
            wrapped,
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
            BLOCKS_PER_PROGRAM,
            local_offsets,
            scale,
            softcap or 0.0,
            BLOCK=RECENT_BLOCK,
            SOFTCAP=bool(softcap),
            INDIRECT=table is not None,
            **_numbers(q),
            num_warps=RECENT_LAUNCH[0],
            num_stages=RECENT_LAUNCH[1],
        )
        columns += column
        # Slot i of the two lines together holds offset first - i + RECENT_BLOCK.
        pad = torch.nn.functional.pad
        line = pad(straight.flatten(2), (RECENT_BLOCK, 0)) + pad(wrapped.flatten(2), (0, RECENT_BLOCK))
        part = line[..., RECENT_BLOCK + 1 - rows : first + RECENT_BLOCK + 1].flip(-1)
        diagonals[..., : part.shape[-1]] += part
    return columns, diagonals


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
