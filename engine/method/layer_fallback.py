"""Step 5 of the policy "priced": raise heads, or the whole layer, where a certificate is below its tau.

The price decides what is spent; the certificate only guards it. Every unit climbs the levels of its own family, which
are nested: no row's mass falls from a rung to the next. All rungs are fixed before the certificate rows are read, and
each is tested at the full error 1 - q:

- the layer's mean mass, with every head at rung k, against tau_layer (``layer_certificate``);
- each head's own mean mass against tau_head, so that no head is given up.

Either keeps the cheapest rung that passes together with all dearer ones (``certificate.kept_rung``); a head runs at the
dearer of its own rung and its layer's. What has been claimed stays true when a head then climbs further, since its mass
only rises. Past the last rung stands dense. Tensor operations for all units at once; nothing waits for the host.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING

import numpy as np
import torch

from routesparse.engine.device.constants import constant
from routesparse.engine.method.certificate import (
    bernstein_lower_bound,
    betting_lower_bound,
    kept_rung,
    stepwise_lower_mass,
)
from routesparse.engine.method.fallback import DeviceCertified, LayerBounds
from routesparse.engine.method.layer_certificate import layer_lower_mass
from routesparse.engine.method.solvers import taken

if TYPE_CHECKING:
    from routesparse.engine.config import RouterConfig
    from routesparse.engine.method.patterns import Candidate


def next_levels(candidates: Sequence[Candidate]) -> np.ndarray:
    """The next dearer candidate of each one's family, -1 where there is none: int64 [C]."""
    return np.array(
        [
            one.index + 1 if following is not None and following.pattern == one.pattern else -1
            for one, following in zip(candidates, [*candidates[1:], None], strict=True)
        ]
    )


def levels_above(
    cost: torch.Tensor, choice: torch.Tensor, following: torch.Tensor, rungs: int
) -> torch.Tensor:
    """Each unit's choice and the next levels of its family: int64 [U, s], -1 past the last below dense's cost.

    cost [U, C], dense last; choice [U]; following int64 [C], ``next_levels``.
    """
    dense = cost.shape[1] - 1
    ladder = [torch.where(choice == dense, -1, choice)]
    for _ in range(rungs - 1):
        above = torch.where(ladder[-1] >= 0, following[ladder[-1].clamp_min(0)], -1)
        cheaper = taken(cost, above.clamp_min(0)) < cost[:, dense]
        ladder.append(torch.where(cheaper, above, -1))
    return torch.stack(ladder, 1)


def certify_layer(
    cost: torch.Tensor,
    certificate_mass: torch.Tensor,
    choice: torch.Tensor,
    candidates: Sequence[Candidate],
    config: RouterConfig,
    batch: int,
) -> DeviceCertified:
    """Test the router's choice and climb. cost float64 [U, C], certificate_mass float64 [U, rows, C], choice int64 [U].

    The U units are batch * H, one layer and segment each prompt.
    """
    error, rungs = 1.0 - config.confidence, config.max_tests
    following = constant(next_levels(candidates), choice.device)
    ladder = levels_above(cost, choice, following, rungs)
    exists = ladder >= 0
    place = ladder.clamp_min(0).unsqueeze(1).expand(-1, certificate_mass.shape[1], -1)
    # A rung that does not exist is dense: every row keeps all its mass. [U, s, rows]
    masses = (
        certificate_mass.gather(2, place).masked_fill(~exists.unsqueeze(1), 1.0).transpose(1, 2).contiguous()
    )

    lower_bound = betting_lower_bound if config.bound == "betting" else bernstein_lower_bound
    bounds = lower_bound(masses, error)
    own = kept_rung((bounds >= config.tau_head) | ~exists)
    by_layer = masses.unflatten(0, (batch, -1)).transpose(1, 2)  # [B, s, H, rows]
    layer_bounds = layer_lower_mass(by_layer, error)
    level = kept_rung(layer_bounds >= config.tau_layer)

    state = torch.maximum(own.view(batch, -1), level.unsqueeze(1)).flatten()
    if not config.fallback:
        state = torch.zeros_like(state)
    dense = cost.shape[1] - 1
    final = taken(
        torch.cat([torch.where(exists, ladder, dense), torch.full_like(ladder[:, :1], dense)], 1), state
    )
    active = exists[:, 0]
    sparse = active & (final != dense)
    kind = torch.where(sparse, (state > 0).long(), torch.where(active, 2, 0))
    claimed = stepwise_lower_mass(torch.where(exists, bounds, torch.inf), config.tau_head)
    layer_claimed = stepwise_lower_mass(layer_bounds, config.tau_layer)
    if not config.fallback:
        claimed, layer_claimed = bounds[:, 0], layer_bounds[:, 0]
    tested = exists & (torch.arange(rungs, device=state.device) <= state.unsqueeze(1))
    return DeviceCertified(
        torch.where(active, final, choice),
        kind,
        torch.zeros_like(active),
        torch.where(sparse, claimed, torch.nan),
        ladder,
        bounds,
        tested,
        LayerBounds(layer_bounds, level, layer_claimed),
    )
