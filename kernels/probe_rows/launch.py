"""Probe rows placed by one kernel."""

from __future__ import annotations

import torch

from routesparse.kernels.launching import power_of_two, variant


def place_rows(
    draws: torch.Tensor,
    first_keys: torch.Tensor,
    sizes: tuple[int, int, int, int],
    *,
    body: int,
    rows: int,
    position: int,
) -> torch.Tensor:
    """The contract of the package."""
    from routesparse.kernels.probe_rows.kernel import place_kernel

    batch, heads, _ = draws.shape
    recent, routing, certificate, boundary = sizes
    out = torch.empty(batch, heads, sum(sizes), dtype=torch.int64, device=draws.device)
    variant(place_kernel)[(batch * heads,)](
        draws.contiguous(),
        first_keys,
        out,
        heads,
        sum(sizes),
        recent,
        routing,
        certificate,
        boundary // 2,
        body,
        rows,
        position,
        P=power_of_two(sum(sizes)),
        num_warps=4,
        enable_fp_fusion=False,
    )
    return out
