"""Block log-sum-exps of the probe's rows (paper section 3.2, exact probe): a few rows against every key."""

from __future__ import annotations

from typing import Any, NamedTuple

import torch

from routesparse.kernels.block_lse import naive
from routesparse.kernels.common import dispatched, launch, power_of_two
from routesparse.kernels.logits import Logits

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

    def arguments(self) -> dict[str, Any]:
        """What both kernels ask of them, by their arguments' names."""
        return {
            "query_ptr": self.queries,
            "position_ptr": self.position,
            "row_ptr": self.row,
            "first_tile_ptr": self.first_tile,
            "out_ptr": self.out,
            "key_blocks": self.out.shape[-1],
        }


@dispatched(naive.block_lse)
def block_lse(
    logits: Logits,
    positions: torch.Tensor,
    first_keys: torch.Tensor | None,
    *,
    shift: int,
    keys: int,
    block_k: int,
) -> torch.Tensor:
    """See the naive twin."""
    from routesparse.kernels.block_lse.kernel import block_lse_kernel

    q = logits.q
    rows, width, warps, stages = LAUNCH
    while width > block_k and width * power_of_two(q.shape[-1]) * q.element_size() > TILE_BYTES:
        width //= 2
    blocks = max(1, width // block_k)
    seen = collect_rows(logits, positions, shift, keys, rows, block_k, blocks)
    units, key_tiles = seen.first_tile.shape
    launch(
        block_lse_kernel,
        (units * key_tiles,),
        logits.arguments(),
        seen.arguments(),
        lengths=("key_tiles",),
        first_key=positions if first_keys is None else first_keys,
        units=units,
        row_tiles=seen.queries.shape[1] // rows,
        keys=keys,
        key_tiles=key_tiles,
        ROWS=rows,
        BLOCK=block_k,
        BLOCKS=blocks,
        KEY_START=first_keys is not None,
        STAGES=stages,
        num_warps=warps,
    )
    return seen.out


def collect_rows(
    logits: Logits, positions: torch.Tensor, shift: int, keys: int, rows: int, block_k: int, blocks: int
) -> Rows:
    """Copy the rows to their places; tiles of ``rows`` rows and of ``blocks`` KV blocks."""
    from routesparse.kernels.block_lse.kernel import collect_rows_kernel

    q = logits.q
    batch, heads, count = positions.shape
    units, padded = batch * logits.k.shape[1], -(-logits.group * count // rows) * rows
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
    launch(
        collect_rows_kernel,
        (padded // COLLECTED_ROWS, units),
        logits.arguments(),
        seen.arguments(),
        lengths=("key_tiles",),
        sample=positions.contiguous(),
        count=count,
        padded=padded,
        key_tiles=key_tiles,
        shift=shift,
        ROWS=rows,
        SOME=COLLECTED_ROWS,
        BLOCK=block_k,
        BLOCKS=blocks,
        num_warps=4,
    )
    return seen
