"""Step 5 of the policies about single heads: below tau expand the budget, then switch to dense (paper section 3.4).

The policy "priced" has its own in ``layer_fallback.py``.

The order of escalation is fixed by the routing rows alone: the router's choice, then the next dearer admissible
candidates, at most s tests, then dense. The certificate rows are read only here, one candidate at a time, each at
error (1 - q)/s: the chance that a unit keeps a candidate whose body mean mass is below its bound is at most 1 - q.

Tensor operations for all units at once, without a host synchronisation. A unit's ladder is known beforehand, so its
at most s bounds are taken in one batch; a test counts as made only where every rung before it failed, and later
bounds are never looked at. The policy "strict" hands out its slack by deficit, in a loop over units.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.certificate import in_prompt_lower_mass
from routesparse.engine.method.policy import NEXT_BUDGET
from routesparse.engine.method.router import admissible
from routesparse.engine.method.solvers import taken
from routesparse.engine.rows import FallbackKind
from routesparse.kernels.arrays import Array

FALLBACK_KINDS: tuple[FallbackKind | None, ...] = (None, "expand", "dense")


@dataclass(frozen=True)
class CertificateTest:
    """One certificate test of one unit."""

    unit: int
    candidate: int
    lower_mass: float
    passed: bool


@dataclass(frozen=True)
class LayerBounds:
    """The layer's certificate (layer_fallback.py) of B prompts.

    bounds float64 [B, s]: of the layer's mean mass with every head at a rung; rung int64 [B]: the one that the layer
    was raised to, s for dense; lower_mass float64 [B]: what is claimed of it, NaN where no rung is kept and where the
    router had chosen dense for every head.
    """

    bounds: np.ndarray
    rung: np.ndarray
    lower_mass: np.ndarray


@dataclass(frozen=True)
class Certified:
    """The choice after step 5. lower_mass is NaN for dense units; unmet: strict policy had no time to grant it.

    layer and head_rung: under the policy "priced" alone.
    """

    choice: np.ndarray  # int64 [U]
    lower_mass: np.ndarray  # float64 [U]
    tests: tuple[CertificateTest, ...]
    fallback: tuple[str | None, ...]  # per unit: None | "expand" | "dense"
    unmet: np.ndarray  # bool [U]
    layer: LayerBounds | None = None
    head_rung: np.ndarray | None = None  # int64 [U], the rung that each head's own certificate keeps


@dataclass(frozen=True)
class Escalated:
    """What ``certify`` found for U units with s rungs: tensors, or NumPy arrays once they have arrived on the host."""

    choice: Array  # int64 [U]
    kind: Array  # int64 [U], a place in FALLBACK_KINDS
    unmet: Array  # bool [U]
    lower_mass: Array  # float64 [U], NaN for dense units
    ladder: Array  # int64 [U, s], -1: no rung
    bounds: Array  # float64 [U, s]
    tested: Array  # bool [U, s]


def escalation(
    cost: torch.Tensor, g: torch.Tensor, choice: torch.Tensor, gate_threshold: float, max_tests: int
) -> torch.Tensor:
    """The sparse candidates that may be tested for each unit, in order: int64 [U, s], -1 past the last one.

    cost, g (gate statistic) [U, C], choice [U]; no rung where the router chose dense. After the first: the cheapest
    candidate with a higher g and a cost of at least NEXT_BUDGET times the one before, never as dear as dense.
    """
    dense = cost.shape[1] - 1
    rungs = [torch.where(choice == dense, -1, choice)]
    allowed = admissible(g, gate_threshold) & (cost < cost[:, dense:])
    allowed[:, dense] = False
    last = choice
    for _ in range(max_tests - 1):
        place = last.unsqueeze(1)
        better = allowed & (g > g.gather(1, place)) & (cost >= NEXT_BUDGET * cost.gather(1, place))
        price = torch.where(better, cost, torch.inf)
        cheapest = price.amin(1, keepdim=True)
        # The best g among equally cheap ones, then the first.
        following = torch.where(better & (price == cheapest), g, -torch.inf).argmax(1)
        exists = (rungs[-1] >= 0) & better.any(1)
        rungs.append(torch.where(exists, following, -1))
        last = torch.where(exists, following, last)
    return torch.stack(rungs, 1)


def certify(
    cost: torch.Tensor,
    gate_statistic: torch.Tensor,
    certificate_mass: torch.Tensor,
    choice: torch.Tensor,
    config: RouterConfig,
    gate_threshold: float,
    slack_us: torch.Tensor | None = None,
) -> Escalated:
    """Test the router's choice and escalate. cost, gate_statistic float64 [U, C], certificate_mass [U, rows, C].

    slack_us: float64 scalar, what is left of T_l; read by the policy "strict" only, which grants escalations by
    largest deficit tau - m_low while it lasts and records the others as unmet.
    """
    dense = cost.shape[1] - 1
    ladder = escalation(cost, gate_statistic, choice, gate_threshold, config.max_tests)
    rung_exists = ladder >= 0
    place = ladder.clamp_min(0).unsqueeze(1).expand(-1, certificate_mass.shape[1], -1)
    rows = certificate_mass.gather(2, place).transpose(1, 2).double()
    bounds = in_prompt_lower_mass(rows, config.confidence, config.max_tests, config.bound)
    passed = (bounds >= config.tau) & rung_exists

    # State after a rung: 0 .. s - 1 on the ladder, s dense. A unit without a ladder is dense from the start.
    state = torch.zeros_like(choice)
    active = rung_exists[:, 0]
    tested = [active]
    failed = active & ~passed[:, 0] if config.fallback else torch.zeros_like(active)
    unmet = torch.zeros_like(active)
    targets = torch.cat([torch.where(rung_exists, ladder, dense), torch.full_like(ladder[:, :1], dense)], 1)
    slack = slack_us if config.policy == "strict" else None
    for rung in range(1, config.max_tests + 1):
        granted = failed
        if slack is not None:
            extra = taken(cost, targets[:, rung]) - taken(cost, targets[:, rung - 1])
            granted, slack = _grant(failed, bounds[:, rung - 1], extra, slack)
            unmet = unmet | (failed & ~granted)
        state = torch.where(granted, rung, state)
        if rung == config.max_tests:
            break
        testing = granted & rung_exists[:, rung]
        tested.append(testing)
        failed = testing & ~passed[:, rung]
    final = torch.where(active, taken(targets, state), choice)
    on_ladder = active & (final != dense)
    kind = torch.where(on_ladder, (state > 0).long(), torch.where(active, 2, 0))
    reached = taken(bounds, state.clamp_max(config.max_tests - 1))
    lower = torch.where(on_ladder, reached, torch.nan)
    return Escalated(final, kind, unmet, lower, ladder, bounds, torch.stack(tested, 1))


def read_escalated(found: Escalated, tau: float) -> Certified:
    """What the host records of an Escalated of NumPy arrays."""
    tests = []
    for rung in range(found.tested.shape[1]):
        for unit in np.flatnonzero(found.tested[:, rung]):
            bound = float(found.bounds[unit, rung])
            tests.append(CertificateTest(int(unit), int(found.ladder[unit, rung]), bound, bound >= tau))
    kinds = tuple(FALLBACK_KINDS[kind] for kind in found.kind)
    return Certified(found.choice, found.lower_mass, tuple(tests), kinds, found.unmet)


def _grant(
    failed: torch.Tensor, bounds: torch.Tensor, extra: torch.Tensor, slack: torch.Tensor
) -> tuple[torch.Tensor, torch.Tensor]:
    """Units that get their next rung while the slack lasts, lowest bound first, and what is left of it."""
    order = torch.where(failed, bounds, torch.inf).argsort(stable=True)
    wanted, price = failed[order], extra[order]
    grants = []
    for unit in range(len(order)):
        grants.append(wanted[unit] & (price[unit] <= slack))
        slack = torch.where(grants[-1], slack - price[unit], slack)
    return torch.zeros_like(failed).scatter_(0, order, torch.stack(grants)), slack
