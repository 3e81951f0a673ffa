"""Which query rows the probe reads (paper section 3.2, step 1).

Four groups of rows with separate jobs:

- recent: the last rows of the segment, all of them (a census). Builders rank with them.
- routing: one uniform draw in each of R equal strata of the body. They score candidates; builders never read them.
- certificate: C independent uniform draws from the body. Only the certificate reads them.
- boundary: rows beside the segment's edges, for the disagreement u and for diagnosis.

Random rows follow from the configuration's seed and a salt, so that an unlucky draw does not recur on every prompt.
The command line takes the prompt's hash as salt. ``route()`` takes a fresh one per block, since a hash of ids that
lie on a GPU would have to be waited for; ``trace.salt`` says which.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

import torch

from routesparse.engine.device.constants import to_device
from routesparse.kernels import probe_rows

if TYPE_CHECKING:
    from routesparse.engine.config import RouterConfig
    from routesparse.engine.method.segments import Segment

RECENT, ROUTING, CERTIFICATE, BOUNDARY = 0, 1, 2, 3


@dataclass(frozen=True)
class ProbeRows:
    """Row numbers inside the segment, int64 [B, H, P], in the order recent, routing, certificate, boundary."""

    rows: torch.Tensor
    sizes: tuple[int, int, int, int]

    def slice_of(self, kind: int) -> slice:
        """Where a group stands on the last axis of ``rows`` and of everything measured on it."""
        start = sum(self.sizes[:kind])
        return slice(start, start + self.sizes[kind])


def draw_rows(
    segment: Segment, batch: int, heads: int, config: RouterConfig, seed: int, first_keys: torch.Tensor
) -> ProbeRows:
    """Seeded rows for one layer and segment, redrawn per head, never aligned to blocks.

    seed: unique per (run, layer, segment). first_keys [B]: rows before it are padding and are never drawn.
    Certificate rows are drawn with replacement: independent, uniform on the body.
    """
    draws = to_device(draw_shares(batch, heads, config, seed), first_keys.device)
    return place_rows(segment, config, draws, first_keys)


def draw_shares(batch: int, heads: int, config: RouterConfig, seed: int) -> torch.Tensor:
    """Uniform draws in [0, 1) for the routing rows, then the certificate rows: float64 [B, H, R + C], on the host."""
    generator = torch.Generator().manual_seed(seed)
    counts = (config.routing_rows, config.certificate_rows)
    return torch.cat(
        [torch.rand(batch, heads, count, generator=generator, dtype=torch.float64) for count in counts], -1
    )


def place_rows(
    segment: Segment, config: RouterConfig, draws: torch.Tensor, first_keys: torch.Tensor
) -> ProbeRows:
    """The rows that draws [B, H, R + C] fall on, and the rows that are not drawn, on the draws' device."""
    recent_count = min(config.recent_rows, segment.rows)
    half = min(config.boundary_rows // 2, segment.body)
    sizes = (recent_count, config.routing_rows, config.certificate_rows, 2 * half)
    rows = probe_rows.place_rows(
        draws, first_keys, sizes, body=segment.body, rows=segment.rows, position=segment.position
    )
    return ProbeRows(rows, sizes)
