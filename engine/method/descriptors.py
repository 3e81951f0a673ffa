"""Three inexpensive descriptors of a probed head (paper section 3.2): entropy, local band, agreement.

They are read from the recent, routing and boundary rows only; the certificate rows stay unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.method.probe import LOCAL_BAND_TOKENS, Probe, RowSums
from routesparse.engine.method.probe_rows import CERTIFICATE, RECENT, ROUTING
from routesparse.engine.method.segments import Segment
from routesparse.kernels import route_triton


@dataclass(frozen=True)
class Descriptors:
    """Each [B, H] float32. entropy in nats over KV blocks; local_band and agreement in [0, 1]."""

    entropy: torch.Tensor
    local_band: torch.Tensor
    agreement: torch.Tensor


def describe(probe: Probe, segment: Segment) -> Descriptors:
    """Entropy of the block distribution, mass within the local band, and agreement of recent and routing rows.

    Agreement is 1 - total variation between the two groups' mean distributions over {sink block, distance to the
    diagonal in octaves of KV blocks}: rows at different positions see different keys, distances compare.
    """
    sums = probe.row_sums
    if sums is not None:
        units = route_triton.describe_units(sums.entropy, sums.local, sums.spread, probe.rows.sizes)
        return Descriptors(*units)
    sums = _of_rows(probe, segment)
    certificate = probe.rows.slice_of(CERTIFICATE)

    def routed(values: torch.Tensor) -> torch.Tensor:
        return torch.cat([values[:, :, : certificate.start], values[:, :, certificate.stop :]], 2)

    recent = sums.spread[:, :, probe.rows.slice_of(RECENT)].mean(2)
    body = sums.spread[:, :, probe.rows.slice_of(ROUTING)].mean(2)
    agreement = 1.0 - 0.5 * (recent - body).abs().sum(-1)
    return Descriptors(routed(sums.entropy).mean(-1), routed(sums.local).mean(-1), agreement)


def _of_rows(probe: Probe, segment: Segment) -> RowSums:
    """Entropy, local band and mass by octave of distance of every probe row."""
    entropy = -torch.xlogy(probe.block_mass, probe.block_mass).sum(-1)
    own = (probe.rows.rows + segment.position) // segment.block_k
    blocks = torch.arange(segment.key_blocks, device=own.device)
    distance = (own.unsqueeze(-1) - blocks).clamp_min(0)
    local = (probe.block_mass * (distance < LOCAL_BAND_TOKENS // segment.block_k)).sum(-1)
    octave = 1 + (distance + 1).float().log2().floor().long()
    octave[..., 0] = 0
    spread = probe.block_mass.new_zeros(*own.shape, int(segment.key_blocks).bit_length() + 2)
    spread.scatter_add_(-1, octave, probe.block_mass)
    return RowSums(entropy, local, spread)
