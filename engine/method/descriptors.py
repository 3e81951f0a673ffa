"""Three inexpensive descriptors of a probed head (paper section 3.2): entropy, local band, agreement.

They are read from the recent, routing and boundary rows only; the certificate rows stay unseen.
"""

from __future__ import annotations

from dataclasses import dataclass

import torch

from routesparse.engine.method.probe import Probe
from routesparse.kernels import descriptors


@dataclass(frozen=True)
class Descriptors:
    """Each [B, H] float32. entropy in nats over KV blocks; local_band and agreement in [0, 1]."""

    entropy: torch.Tensor
    local_band: torch.Tensor
    agreement: torch.Tensor


def describe(probe: Probe) -> Descriptors:
    """Entropy of the block distribution, mass within the local band, and agreement of recent and routing rows.

    Agreement is 1 - total variation between the two groups' mean distributions over {sink block, distance to the
    diagonal in octaves of KV blocks}: rows at different positions see different keys, distances compare.
    """
    found = descriptors.describe_units(probe.entropy, probe.local, probe.spread, probe.rows.sizes)
    return Descriptors(*found.unbind(0))
