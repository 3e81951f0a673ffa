"""Recent marginals by tensor operations, and the definition of a band.

Diagonals are ranked in the kernel's unit: the mass that one band of KV blocks brings to a query block. Reading the KV
block at distance D below a query block's first block serves the offsets d for which
floor((phase + x - d) / block_k) = -D, x = 0 .. block_q - 1; hence

    band(D) = sum_d diagonal_mass(d) * #{x : floor((phase + x - d) / block_k) = -D}

is the mass that band D brings to all rows of a query block if the diagonals continue, and costs one tile.
The paper ranks single diagonals; but a single diagonal costs two or three tiles of a query block, so the band, which
costs one, is what a budget should count.
"""

from __future__ import annotations

import itertools

import torch
import torch.nn.functional as F

from routesparse.kernels.geometry import SegmentGeometry
from routesparse.kernels.logits import Logits, capped_logits, key_chunks

KEY_CHUNK = 4_096


def recent_marginals(
    logits: Logits,
    lse: torch.Tensor,
    geometry: SegmentGeometry,
    *,
    first_row: int,
    local_offsets: int,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column sums [B, H, keys] (offsets >= local_offsets) and band masses [B, H, N] of the last rows' softmax.

    lse float32 [B, H, R] of rows q[first_row : first_row + R], which sit at the segment's last R positions.
    """
    columns, diagonals = column_and_diagonal_mass(logits, lse, geometry, first_row, local_offsets)
    phase = geometry.position % geometry.block_k
    return columns, band_mass(diagonals, phase, geometry.block_q, geometry.block_k)


def column_and_diagonal_mass(
    logits: Logits, lse: torch.Tensor, geometry: SegmentGeometry, first_row: int, local_offsets: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column sums (offsets >= local_offsets) and diagonal sums, by offset, of the last rows' softmax: [B, H, keys]."""
    q, k, keys, groups = logits.q, logits.k, geometry.keys, logits.group
    batch, heads, count = lse.shape
    columns = lse.new_zeros(batch, heads, keys)
    diagonals = torch.zeros_like(columns)
    first = keys - count
    position = torch.arange(first, keys, device=q.device).view(-1, 1)
    for b, kv_head in itertools.product(range(batch), range(k.shape[1])):
        first_key = int(geometry.first_keys[b])
        group = slice(kv_head * groups, (kv_head + 1) * groups)
        query = q[b, group, first_row : first_row + count].flatten(0, 1)
        for start, end in key_chunks(keys, geometry.block_k, KEY_CHUNK):
            mass = capped_logits(query, k[b, kv_head, start:end], logits.scale, logits.softcap)
            mass = mass.unflatten(0, (groups, count))
            mass.sub_(lse[b, group].unsqueeze(-1)).exp_()
            key = torch.arange(start, end, device=mass.device)
            if start < first_key:
                mass.masked_fill_(key < first_key, 0.0)
            # Keys from ``near`` on may come after a row, or be local to it.
            near = max(0, first - local_offsets - start)
            mass[..., near:].masked_fill_(key[near:] > position, 0.0)
            _add_diagonals(diagonals[b, group], mass, first, start)
            mass[..., near:].masked_fill_(key[near:] > position - local_offsets, 0.0)
            columns[b, group, start:end] = mass.sum(1)
    return columns, diagonals


def band_mass(diagonal_mass: torch.Tensor, phase: int, block_q: int, block_k: int) -> torch.Tensor:
    """diagonal_mass [B, H, K] by offset -> [B, H, N] by block distance D (see the module's formula)."""
    shift = torch.arange(-block_k + 1, block_q, device=diagonal_mass.device)
    weight = ((shift + block_k).clamp_max(block_q) - shift.clamp_min(0)).clamp_min(0).to(diagonal_mass)
    keys = diagonal_mass.shape[-1]
    key_blocks = -(-keys // block_k)
    # Offset d meets band D at shift d - D * block_k - phase.
    left = block_k - 1 - phase
    right = key_blocks * block_k + block_q - keys
    padded = F.pad(diagonal_mass, (left, max(0, right)))
    # Not a convolution: a GPU may round those to TF32.
    bands = padded.unfold(-1, len(weight), block_k) @ weight
    return bands[..., :key_blocks].contiguous()


def _add_diagonals(total: torch.Tensor, mass: torch.Tensor, first_position: int, start: int) -> None:
    """Add mass [G, P, K] of consecutive rows from first_position and keys from ``start`` to total [G, ..] by offset.

    Row r moved P - 1 - r places to the right lines up the diagonals in columns; column c then holds the offset
    first_position + P - 1 - start - c.
    """
    groups, count, width = mass.shape
    across = width + count - 1
    sheared = mass.new_zeros(groups, count, across)
    sheared.as_strided(mass.shape, (count * across, across - 1, 1), count - 1).copy_(mass)
    line = sheared.sum(1).flip(-1)
    top = first_position + count - 1 - start
    low = top - (across - 1)
    total[:, max(0, low) : top + 1] += line[:, max(0, -low) :]
