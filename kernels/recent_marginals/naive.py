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

import torch
import torch.nn.functional as F

from routesparse.kernels.logits import capped_logits, key_chunks

KEY_CHUNK = 4_096


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

    lse float32 [B, H, R] of rows q[first_row : first_row + R], which sit at positions keys - R .. keys - 1. phase:
    position of a query block's first row inside its KV block. table: as in ``block_lse``.
    """
    columns, diagonals = column_and_diagonal_mass(
        q, k, lse, first_keys, first_row, keys, local_offsets, block_k, scale, softcap
    )
    return columns, band_mass(diagonals, phase, block_q, block_k)


def column_and_diagonal_mass(
    q: torch.Tensor,
    k: torch.Tensor,
    lse: torch.Tensor,
    first_keys: torch.Tensor,
    first_row: int,
    keys: int,
    local_offsets: int,
    block_k: int,
    scale: float,
    softcap: float | None,
) -> tuple[torch.Tensor, torch.Tensor]:
    """Column sums (offsets >= local_offsets) and diagonal sums, by offset, of the last rows' softmax: [B, H, keys]."""
    batch, heads, count = lse.shape
    groups = heads // k.shape[1]
    columns = lse.new_zeros(batch, heads, keys)
    diagonals = torch.zeros_like(columns)
    first = keys - count
    position = torch.arange(first, keys, device=q.device).view(-1, 1)
    for b in range(batch):
        for h in range(heads):
            for start, end in key_chunks(keys, block_k, KEY_CHUNK):
                query = q[b, h, first_row : first_row + count]
                mass = capped_logits(query, k[b, h // groups, start:end], scale, softcap)
                mass.sub_(lse[b, h].unsqueeze(-1)).exp_()
                key = torch.arange(start, end, device=mass.device)
                if start < int(first_keys[b]):
                    mass.masked_fill_(key < first_keys[b], 0.0)
                # Keys from ``near`` on may come after a row, or be local to it.
                near = max(0, first - local_offsets - start)
                mass[:, near:].masked_fill_(key[near:] > position, 0.0)
                _add_diagonals(diagonals[b, h], mass, first, start)
                mass[:, near:].masked_fill_(key[near:] > position - local_offsets, 0.0)
                columns[b, h, start:end] = mass.sum(0)
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
    """Add mass [P, K] of consecutive rows from first_position and keys from ``start`` to total by offset.

    Shearing row r by P - 1 - r places lines up the diagonals in columns; column c then holds the offset
    first_position + P - 1 - start - c.
    """
    count, width = mass.shape
    sheared = F.pad(mass.flip(0), (0, count)).flatten()[: count * (width + count - 1)]
    sums = sheared.view(count, width + count - 1).sum(0)
    top = first_position + count - 1 - start
    low = top - (width + count - 2)
    line = sums.flip(0)
    total[max(0, low) : top + 1] += line[max(0, -low) :]
