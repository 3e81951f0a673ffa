"""Probe rows by tensor operations."""

from __future__ import annotations

import torch


def place_rows(
    draws: torch.Tensor,
    first_keys: torch.Tensor,
    sizes: tuple[int, int, int, int],
    *,
    body: int,
    rows: int,
    position: int,
) -> torch.Tensor:
    """Probe rows int64 [B, H, P]; draws float64 [B, H, routing + certificate], first_keys int64 [B].

    sizes: of the groups recent, routing, certificate, boundary. The segment has ``rows`` rows from key ``position`` on,
    ``body`` of them before the tail. No row is padding.
    """
    device = draws.device
    batch, heads, _ = draws.shape
    recent_count, routing_count, certificate_count, boundary_count = sizes
    low = (first_keys - position).clamp(0, max(0, body - 1)).view(batch, 1, 1)
    span = body - low
    jitter, uniform = draws.split((routing_count, certificate_count), -1)

    recent = torch.arange(rows - recent_count, rows, device=device).expand(batch, heads, -1)
    strata = torch.arange(routing_count, device=device)
    routing = low + ((strata + jitter) / routing_count * span).long().clamp_max(span - 1)
    certificate = low + (uniform * span).long().clamp_max(span - 1)
    half = boundary_count // 2
    edges = [torch.arange(half, device=device), torch.arange(body - half, body, device=device)]
    boundary = torch.maximum(torch.cat(edges).expand(batch, heads, -1), low)
    return torch.cat([recent, routing, certificate, boundary], dim=-1)
