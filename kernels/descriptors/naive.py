"""Descriptors by tensor operations."""

from __future__ import annotations

import torch


def describe_units(
    entropy: torch.Tensor, local: torch.Tensor, spread: torch.Tensor, sizes: tuple[int, int, int, int]
) -> torch.Tensor:
    """Mean entropy and local mass (certificate rows aside) and agreement of each unit: float32 [3, B, H].

    entropy, local float32 [B, H, P]; spread float32 [B, H, P, octaves], as in ``row_mass``; sizes: of the groups
    recent, routing, certificate, boundary. Agreement is 1 - total variation between the mean spreads of the recent
    and the routing rows.
    """
    recent_end, routing_end = sizes[0], sizes[0] + sizes[1]

    def without_certificate(values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values[:, :, :routing_end], values[:, :, routing_end + sizes[2] :]], 2)

    recent = spread[:, :, :recent_end].mean(2)
    body = spread[:, :, recent_end:routing_end].mean(2)
    agreement = 1.0 - 0.5 * (recent - body).abs().sum(-1)
    return torch.stack(
        [without_certificate(entropy).mean(-1), without_certificate(local).mean(-1), agreement]
    )
