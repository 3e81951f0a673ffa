"""Block log-sum-exps of the probe's rows (paper section 3.2, exact probe): a few rows against every key."""

from __future__ import annotations

from typing import NamedTuple

import torch

from routesparse.kernels.block_lse import naive
from routesparse.kernels.common import dispatched, power_of_two, product_constants, variant

# As measured on an H200.
LAUNCH = (64, 128, 4, 2)  # rows and keys of a tile, warps, stages
TILE_BYTES = 32_768  # of keys; they and a few tiles of rows must fit the shared memory of smaller GPUs
COLLECTED_ROWS = 16


class Rows(NamedTuple):
    """The rows of each KV head in order of position, U = B Hkv, padded to whole tiles; keys in tiles, too."""

    queries: torch.Tensor  # [U, rows, D]
    position: torch.Tensor  # int32 [U, rows]
    row: torch.Tensor  # int32 [U, rows], number of the row among the B H P of out; -1 past the last
    first_tile: torch.Tensor  # int32 [U, key tiles], the first tile of rows that sees these keys
    out: torch.Tensor  # float32 [B, H, P, N], -inf behind the key tile that holds a row, else not filled


@dispatched(naive.block_lse)
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
    """See the naive twin."""
    from routesparse.kernels.block_lse.kernel import block_lse_kernel

    rows, width, warps, stages = LAUNCH
    while width > block_k and width * power_of_two(q.shape[-1]) * q.element_size() > TILE_BYTES:
        width //= 2
    blocks = max(1, width // block_k)
    seen = collect_rows(q, positions, shift, keys, rows, block_k, blocks, table, k.shape[1])
    units, key_tiles = seen.first_tile.shape
    variant(block_lse_kernel, keys=keys, key_blocks=seen.out.shape[-1], key_tiles=key_tiles)[
        (units * key_tiles,)
    ](
        k,
        seen.out if table is None else table,
        seen.queries,
        seen.position,
        seen.row,
        seen.first_tile,
        positions if first_keys is None else first_keys,
        seen.out,
        *k.stride(),
        k.shape[1],
        units,
        seen.queries.shape[1] // rows,
        keys,
        seen.out.shape[-1],
        key_tiles,
        scale,
        softcap or 0.0,
        ROWS=rows,
        BLOCK=block_k,
        BLOCKS=blocks,
        KEY_START=first_keys is not None,
        SOFTCAP=bool(softcap),
        INDIRECT=table is not None,
        STAGES=stages,
        **product_constants(q),
        num_warps=warps,
    )
    return seen.out


def collect_rows(
    q: torch.Tensor,
    positions: torch.Tensor,
    shift: int,
    keys: int,
    rows: int,
    block_k: int,
    blocks: int,
    table: torch.Tensor | None,
    kv_heads: int,
) -> Rows:
    """Copy the rows to their places; tiles of ``rows`` rows and of ``blocks`` KV blocks."""
    from routesparse.kernels.block_lse.kernel import collect_rows_kernel

    batch, heads, count = positions.shape
    group = heads // kv_heads
    units, padded = batch * kv_heads, -(-group * count // rows) * rows
    key_blocks = -(-keys // block_k)
    key_tiles = -(-key_blocks // blocks)

    def empty(*shape: int, dtype: torch.dtype) -> torch.Tensor:
        return torch.empty(*shape, dtype=dtype, device=q.device)

    seen = Rows(
        empty(units, padded, q.shape[-1], dtype=q.dtype),
        empty(units, padded, dtype=torch.int32),
        empty(units, padded, dtype=torch.int32),
        empty(units, key_tiles, dtype=torch.int32),
        empty(batch, heads, count, key_blocks, dtype=torch.float32),
    )
    numbers = product_constants(q)
    variant(collect_rows_kernel, key_blocks=key_blocks, key_tiles=key_tiles)[
        (padded // COLLECTED_ROWS, units)
    ](
        q,
        seen.out if table is None else table,
        positions.contiguous(),
        *seen,
        *q.stride(),
        kv_heads,
        group,
        count,
        padded,
        key_blocks,
        key_tiles,
        shift,
        ROWS=rows,
        SOME=COLLECTED_ROWS,
        BLOCK=block_k,
        BLOCKS=blocks,
        HEAD=numbers["HEAD"],
        HEAD_PADDED=numbers["HEAD_PADDED"],
        INDIRECT=table is not None,
        num_warps=4,
    )
    return seen
