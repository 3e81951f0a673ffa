"""Exact rows by two kernels and one small copy to the device, which the host does not wait for."""

from __future__ import annotations

import torch

from routesparse.kernels.common import launch, power_of_two, strides
from routesparse.kernels.exact_rows.naive import ExactRows, Kept
from routesparse.kernels.logits import Logits

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
    logits: Logits,
    v: torch.Tensor,
    out: torch.Tensor,
    rows: torch.Tensor,
    *,
    first_keys: torch.Tensor | None,
    window: int | None,
    planned: bool = False,
    kept: Kept | None = None,
) -> ExactRows:
    """See the naive twin; rows on the host."""
    from routesparse.kernels.exact_rows.kernel import attend_rows_kernel, compare_rows_kernel

    q = logits.q
    batch, heads, count = rows.shape
    kv_heads, keys = logits.k.shape[1:3]
    size = v.shape[-1]
    units, total = batch * kv_heads, logits.group * count
    tile, width, warps, stages = shape_of(total, q.element_size())
    tiles, key_tiles = -(-total // tile), -(-keys // width)
    span = width * -(-key_tiles // max(1, PROGRAMS // (units * tiles)))
    parts, padded = -(-keys // span), tiles * tile
    kinds = 1 if kept is None else 2
    place, wide = _placed(rows.reshape(units, total), q.device), power_of_two(size)
    common = {
        "place_ptr": place,
        "units": units,
        "count": count,
        "span": span,
        "shift": keys - q.shape[2],
        "VALUE": size,
        "VALUE_PADDED": wide,
        "PLANNED": planned,
        "RANGE": RANGE.get(q.dtype, 1.0),
    }

    def empty(*shape: int, dtype: torch.dtype = torch.float32) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=q.device)

    common |= {
        "top_ptr": empty(parts, units, padded),
        "largest_ptr": empty(parts, units, padded, dtype=torch.int32),
        "sum_ptr": empty(kinds, parts, units, padded),
        "reach_ptr": empty(kinds, parts, units, padded),
        "out_ptr": empty(kinds, parts, units, padded, wide),
    }
    blocks, single = (None, None) if kept is None else (kept.blocks, kept.keys)
    launch(
        attend_rows_kernel,
        (tiles * units * parts,),
        logits.arguments(),
        strides("v", v),
        common,
        v=v,
        first_key=place if first_keys is None else first_keys,
        blocks=place if blocks is None else blocks.contiguous().view(torch.uint8),
        single=place if single is None else single.contiguous().view(torch.uint8),
        row_tiles=tiles,
        keys=keys,
        key_blocks=0 if blocks is None else blocks.shape[-1],
        window=window or 0,
        ROWS=tile,
        KEYS=width,
        BLOCK=0 if blocks is None or kept is None else kept.block,
        SINGLE=single is not None,
        KEY_START=first_keys is not None,
        WINDOW=window is not None,
        STAGES=stages,
        num_warps=warps,
    )
    values = empty(5 if planned else 2, batch, heads, count)
    flags = empty(2 if planned else 1, batch, heads, count, dtype=torch.bool)
    key = empty(batch, heads, count, dtype=torch.int64) if planned else place
    sinks = logits.sinks
    launch(
        compare_rows_kernel,
        (units * total,),
        logits.arguments(),
        strides("o", out),
        common,
        ran=out,
        sinks=place if sinks is None else sinks.detach().float().contiguous(),
        value=values,
        flag=flags.view(torch.uint8),
        key=key,
        padded=padded,
        parts=parts,
        PARTS=power_of_two(parts),
        SOME=SOME,
        KEPT=kept is not None,
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
