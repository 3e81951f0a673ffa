"""Exact rows by two kernels, and one small copy to the device: nothing waits for it."""

from __future__ import annotations

import torch

from routesparse.kernels.common import power_of_two, product_constants, variant
from routesparse.kernels.exact_rows.naive import ExactRows, Kept

# Rows and keys of a tile, warps and stages, where a tile holds all rows of a KV head and where it does not. Measured
# on an H200 at 131,072 tokens, 32 heads on 8 KV heads of 128, microseconds: 8 rows a head 285 (keys of 32: 345, 8
# warps: 400); 64 rows 480 (keys of 64: 540, 8 warps: 1,270; tiles of 128 rows: 630), the last 64 tokens 720.
FEW, MANY = (32, 64, 4, 3), (64, 32, 4, 4)
PROGRAMS = 1_024  # about so many share the keys; with 512 or 2,048 up to 45 us more
SOME = 16  # parts of a row that are added at once
MOST_BYTES = 512  # of a head vector: wider ones do not fit the shared memory of every GPU
RANGE = {torch.float16: 2.0**15}  # bfloat16 and float32 reach far enough below 1


def can_run(q: torch.Tensor, v: torch.Tensor) -> bool:
    """Whether the kernels take such queries and values."""
    known = q.dtype == v.dtype and q.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return known and power_of_two(max(q.shape[-1], v.shape[-1])) * q.element_size() <= MOST_BYTES


def exact_rows(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor,
    *,
    first_keys: torch.Tensor | None,
    window: int | None,
    scale: float,
    softcap: float | None,
    sinks: torch.Tensor | None,
    planned: bool = False,
    kept: Kept | None = None,
) -> ExactRows:
    """See the naive twin; rows on the host."""
    from routesparse.kernels.exact_rows.kernel import attend_rows_kernel, compare_rows_kernel

    batch, heads, count = rows.shape
    kv_heads, keys = k.shape[1:3]
    group, size = heads // kv_heads, v.shape[-1]
    units, total = batch * kv_heads, heads // kv_heads * count
    tile, width, warps, stages = shape_of(total, q.element_size())
    tiles, key_tiles = -(-total // tile), -(-keys // width)
    span = width * -(-key_tiles // max(1, PROGRAMS // (units * tiles)))
    parts, padded = -(-keys // span), tiles * tile
    kinds = 1 if kept is None else 2
    numbers = product_constants(q)
    wide = power_of_two(size)

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=q.device)

    place = _placed(rows.reshape(units, total), q.device)
    top, largest = empty(parts, units, padded), empty(parts, units, padded, dtype=torch.int32)
    sums, reach = empty(kinds, parts, units, padded), empty(kinds, parts, units, padded)
    outputs = empty(kinds, parts, units, padded, wide)
    left = top, sums, reach, largest, outputs
    blocks, single = (None, None) if kept is None else (kept.blocks, kept.keys)
    variant(attend_rows_kernel, keys=keys, key_blocks=0 if blocks is None else blocks.shape[-1])[
        (tiles * units * parts,)
    ](
        q,
        k,
        v,
        place,
        place if first_keys is None else first_keys,
        place if blocks is None else blocks.contiguous().view(torch.uint8),
        place if single is None else single.contiguous().view(torch.uint8),
        *left[:4],
        outputs,
        *q.stride(),
        *k.stride(),
        *v.stride(),
        units,
        kv_heads,
        group,
        count,
        tiles,
        keys,
        0 if blocks is None else blocks.shape[-1],
        span,
        keys - q.shape[2],
        window or 0,
        scale,
        softcap or 0.0,
        ROWS=tile,
        KEYS=width,
        VALUE=size,
        VALUE_PADDED=wide,
        BLOCK=0 if blocks is None or kept is None else kept.block,
        SINGLE=single is not None,
        PLANNED=planned,
        KEY_START=first_keys is not None,
        WINDOW=window is not None,
        SOFTCAP=bool(softcap),
        RANGE=RANGE.get(q.dtype, 1.0),
        STAGES=stages,
        **numbers,
        num_warps=warps,
    )
    values = empty(5 if planned else 2, batch, heads, count)
    flags = empty(2 if planned else 1, batch, heads, count, dtype=torch.bool)
    key = empty(batch, heads, count, dtype=torch.int64) if planned else place
    compare_rows_kernel[(units * total,)](
        place,
        out,
        place if sinks is None else sinks.detach().float().contiguous(),
        *left,
        values,
        flags.view(torch.uint8),
        key,
        *out.stride(),
        units,
        kv_heads,
        group,
        count,
        padded,
        parts,
        span,
        keys - q.shape[2],
        VALUE=size,
        VALUE_PADDED=wide,
        PARTS=power_of_two(parts),
        SOME=SOME,
        SINKS=sinks is not None,
        PLANNED=planned,
        KEPT=kept is not None,
        RANGE=RANGE.get(q.dtype, 1.0),
        num_warps=4,
    )
    if not planned:
        return ExactRows(*values, flags[0])
    return ExactRows(values[0], values[1], flags[0], values[2], flags[1], key, values[3], values[4])


def shape_of(rows: int, number_bytes: int) -> tuple[int, int, int, int]:
    """Rows and keys of a tile, warps and stages, for so many rows of a KV head and numbers of so many bytes."""
    tile, width, warps, stages = FEW if rows <= FEW[0] else MANY
    # Without tensor cores the products decide, and tiles of twice the bytes have to fit.
    return (tile, width // 2, warps, 1) if number_bytes == 4 else (tile, width, warps, stages)


def _placed(rows: torch.Tensor, device: torch.device) -> torch.Tensor:
    """int32 [2, U, R] of rows [U, R]: those of each KV head in order, and each one's number before."""
    place = torch.stack(rows.sort(1)).int()
    return place.pin_memory().to(device, non_blocking=True) if device.type == "cuda" else place
