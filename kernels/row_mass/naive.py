"""Row masses by tensor operations."""

from __future__ import annotations

from typing import NamedTuple

import torch


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
    lse = block_lse.logsumexp(-1)
    sink_mass = torch.zeros_like(lse)
    if sinks is not None:
        sink = sinks.float().view(1, -1, 1)
        lse = torch.logaddexp(lse, sink)
        sink_mass = (sink - lse).exp()
    mass = block_lse.sub_(lse.unsqueeze(-1)).exp_().nan_to_num_(0.0)
    finite = (torch.isfinite(lse) | (positions < first_keys.view(-1, 1, 1))).all()

    entropy = -torch.xlogy(mass, mass).sum(-1)
    key_blocks = mass.shape[-1]
    blocks = torch.arange(key_blocks, device=mass.device)
    distance = ((positions // block_k).unsqueeze(-1) - blocks).clamp_min(0)
    local = (mass * (distance < local_tokens // block_k)).sum(-1)
    octave = 1 + (distance + 1).float().log2().floor().long()
    octave[..., 0] = 0
    spread = mass.new_zeros(*positions.shape, key_blocks.bit_length() + 2)
    spread.scatter_add_(-1, octave, mass)
    return RowMass(lse, sink_mass, entropy, local, spread, finite)
