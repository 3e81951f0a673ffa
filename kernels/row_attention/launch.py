"""Attention of rows at given positions by two kernels; the host waits for nothing."""

from __future__ import annotations

import torch
from torch import Tensor

from routesparse.kernels.common import launch, power_of_two, strides
from routesparse.kernels.logits import Logits
from routesparse.kernels.row_attention.naive import Places

ROWS, KEYS, WARPS, STAGES = 64, 64, 4, 3  # of a tile
PROGRAMS = 1_024  # about so many share the keys
JOINED = 16  # rows whose spans a program adds up
MOST_BYTES = 512  # of a head vector: wider ones do not fit the shared memory of every GPU


def can_run(q: Tensor, v: Tensor) -> bool:
    """Whether the kernels take such queries and values."""
    known = q.dtype == v.dtype and q.dtype in (torch.bfloat16, torch.float16, torch.float32)
    return known and power_of_two(max(q.shape[-1], v.shape[-1])) * q.element_size() <= MOST_BYTES


def row_attention(logits: Logits, v: Tensor, at: Places, *, window: int | None = None) -> Tensor:
    """See the naive twin."""
    from routesparse.kernels.row_attention.kernel import parts_kernel, span_kernel

    q = logits.q
    batch, heads, count, _ = q.shape
    kv_heads, keys = logits.k.shape[1:3]
    units, total, size = batch * kv_heads, logits.group * count, v.shape[3]
    width = KEYS if q.element_size() == 2 else KEYS // 2
    tiles, key_tiles = -(-total // ROWS), -(-keys // width)
    span = width * -(-key_tiles // max(1, PROGRAMS // (units * tiles)))
    parts, padded, wide = -(-keys // span), tiles * ROWS, power_of_two(size)
    top, weight = q.new_empty(2, parts, units, padded, dtype=torch.float32)
    joined = q.new_empty(batch, heads, count, size)
    common = {
        **logits.arguments(),
        "at_ptr": at.rows,
        "top_ptr": top,
        "sum_ptr": weight,
        "out_ptr": q.new_empty(parts, units, padded, wide, dtype=torch.float32),
        "units": units,
        "span": span,
        "window": window or 0,
        "VALUE": size,
        "VALUE_PADDED": wide,
        "WINDOW": window is not None,
    }
    launch(
        span_kernel,
        (tiles * units * parts,),
        common,
        strides("v", v),
        v=v,
        total=total,
        row_tiles=tiles,
        keys=keys,
        ROWS=ROWS,
        KEYS=width,
        STAGES=STAGES if q.element_size() == 2 else 1,
        num_warps=WARPS,
    )
    sinks = logits.sinks
    launch(
        parts_kernel,
        (-(-total // JOINED), units),
        common,
        sinks=top if sinks is None else sinks.detach().float().contiguous(),
        count=count,
        padded=padded,
        joined=joined,
        ROWS=JOINED,
        num_warps=4,
    )
    return joined
