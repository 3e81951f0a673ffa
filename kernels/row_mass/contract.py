"""What the block masses of a probe row add up to."""

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
