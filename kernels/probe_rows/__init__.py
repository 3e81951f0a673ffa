"""Where the rows of a probe stand (paper section 3.2): draws become row numbers of each head."""

from __future__ import annotations

import torch

from routesparse.kernels.common import dispatched, power_of_two, variant
from routesparse.kernels.probe_rows import naive


@dispatched(naive.place_rows)
def place_rows(
    draws: torch.Tensor,
    first_keys: torch.Tensor,
    sizes: tuple[int, int, int, int],
    *,
    body: int,
    rows: int,
    position: int,
) -> torch.Tensor:
    """See the naive twin."""
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
