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
from dataclasses import dataclass

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.device.constants import constant
from routesparse.engine.method.certificate import bernstein_lower_bound, kept_rung, stepwise_lower_mass
from routesparse.engine.method.fallback import FALLBACK_KINDS, CertificateTest, Certified, LayerBounds
from routesparse.engine.method.layer_certificate import layer_lower_mass, layer_passes
from routesparse.engine.method.records import Candidate
from routesparse.engine.method.solvers import taken
from routesparse.kernels.arrays import Array
from routesparse.kernels.betting_bound import betting_lower_bound


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


@dataclass(frozen=True)
class Climb:
    """What ``climb`` found for U units of B prompts with s rungs: tensors, or NumPy arrays on the host."""

    choice: Array  # int64 [U], final
    ladder: Array  # int64 [U, s], -1: dense from here on
    state: Array  # int64 [U], the rung that a unit ends at, s for dense
    head_passed: Array  # bool [U, s], each head's own tests
    layer_passed: Array  # bool [B, s]


def climb(
    cost: torch.Tensor,
    certificate_mass: torch.Tensor,
    choice: torch.Tensor,
    candidates: Sequence[Candidate],
    config: RouterConfig,
    batch: int,
) -> Climb:
    """Test the router's choice and climb. cost float64 [U, C], certificate_mass float64 [U, rows, C], choice int64 [U].

    The U units are batch * H, one layer and segment of each prompt. Whether a bound reaches tau takes one look at the
    wealth there; the bounds themselves are found when the record is read (``read_climb``).
    """
    error, dense = 1.0 - config.confidence, cost.shape[1] - 1
    following = constant(next_levels(candidates), choice.device)
    ladder = levels_above(cost, choice, following, config.max_tests)
    masses = masses_of(certificate_mass, ladder)
    if config.bound == "betting":
        head_passed = _passes(masses.unsqueeze(-2), config.tau_head, error)
    else:
        head_passed = bernstein_lower_bound(masses, error) >= config.tau_head
    head_passed = head_passed | (ladder < 0)
    layer_passed = _passes(_by_layer(masses, batch), config.tau_layer, error)
    state = torch.maximum(
        kept_rung(head_passed).view(batch, -1), kept_rung(layer_passed).unsqueeze(1)
    ).flatten()
    if not config.fallback:
        state = torch.zeros_like(state)
    ends = torch.cat([torch.where(ladder < 0, dense, ladder), torch.full_like(ladder[:, :1], dense)], 1)
    return Climb(taken(ends, state), ladder, state, head_passed, layer_passed)


def read_climb(found: Climb, certificate_mass: np.ndarray, config: RouterConfig, batch: int) -> Certified:
    """What the host records of a Climb of NumPy arrays, and what may be claimed of masses and layers."""
    error = 1.0 - config.confidence
    ladder, state, passed, layer_passed = found.ladder, found.state, found.head_passed, found.layer_passed
    units, rungs = ladder.shape
    masses = masses_of(torch.from_numpy(certificate_mass), torch.from_numpy(ladder)).numpy()
    bounds = (betting_lower_bound if config.bound == "betting" else bernstein_lower_bound)(masses, error)
    layer_bounds = layer_lower_mass(_by_layer(torch.from_numpy(masses), batch).numpy(), error)
    dense = certificate_mass.shape[2] - 1
    active = ladder[:, 0] >= 0
    sparse = active & (found.choice != dense)
    head_rung, layer_rung = np.zeros(units, np.int64), np.zeros(batch, np.int64)
    claimed, layer_claimed = bounds[:, 0], layer_bounds[:, 0]
    if config.fallback:
        head_rung, layer_rung = kept_rung(passed), kept_rung(layer_passed)
        claimed = stepwise_lower_mass(np.where(ladder >= 0, bounds, np.inf), config.tau_head, passed)
        layer_claimed = stepwise_lower_mass(layer_bounds, config.tau_layer, layer_passed)
    # Where the router chose dense for every head there is nothing to certify.
    routed = active.reshape(batch, -1).any(1)
    tests = tuple(
        CertificateTest(unit, int(ladder[unit, rung]), float(bounds[unit, rung]), bool(passed[unit, rung]))
        for unit in range(units)
        for rung in range(min(int(state[unit]) + 1, rungs))
        if ladder[unit, rung] >= 0
    )
    kinds = np.where(sparse, np.minimum(state, 1), np.where(active, 2, 0))
    return Certified(
        found.choice,
        np.where(sparse, claimed, np.nan),
        tests,
        tuple(FALLBACK_KINDS[kind] for kind in kinds),
        np.zeros(units, dtype=bool),
        LayerBounds(layer_bounds, np.where(routed, layer_rung, 0), np.where(routed, layer_claimed, np.nan)),
        head_rung,
    )


def masses_of(certificate_mass: torch.Tensor, ladder: torch.Tensor) -> torch.Tensor:
    """Masses of the certificate rows at every rung, 1 where it is dense: float64 [U, s, rows]."""
    place = ladder.clamp_min(0).unsqueeze(1).expand(-1, certificate_mass.shape[1], -1)
    return certificate_mass.gather(2, place).masked_fill((ladder < 0).unsqueeze(1), 1.0).transpose(1, 2)


def _by_layer(masses: torch.Tensor, batch: int) -> torch.Tensor:
    """[U, s, rows] -> [B, s, H, rows]."""
    return masses.unflatten(0, (batch, -1)).transpose(1, 2)


def _passes(masses: torch.Tensor, tau: float, error: float) -> torch.Tensor:
    """Whether each mean is certified to reach tau: [..., H, rows] -> bool [...]. Every mean reaches 0."""
    if not tau:
        return torch.ones(masses.shape[:-2], dtype=torch.bool, device=masses.device)
    return layer_passes(masses, tau, error)
