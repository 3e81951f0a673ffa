"""The router (paper sections 3.3 and 3.4): g, the risk of eq. 4, the gate rule, and eq. 6 where a limit asks for it.

    R(h, p, b | x) = 1 - g + alpha u + beta e,     g = min(mean over the routing rows, mean over the recent rows)

The paper writes m-hat, the mean over the routing rows, where g stands. A mean over many rows hides the few rows that
ask a question: on needle prompts it looked certified while three of four needles were lost.

Four policies:

- ``priced``: one price for every block of every head and layer. A head takes its floor at the price, or a cheaper
  candidate that loses at most OTHER_LOSS of what that floor loses: a mean over the probe's rows does not see the rare
  rows that look something up, for which the floor keeps blocks.
- ``certified``: each head takes its cheapest candidate with g >= lambda (dense if none); T_l is a ceiling
  and eq. 6 is solved only where the sum exceeds it.
- ``budgeted`` (the paper): minimise total risk subject to t_probe + sum t_ker <= T_l; fallback may overrun it.
- ``strict``: as budgeted, and fallback only spends what is left of T_l.

All of it is written once for NumPy arrays (replays in the dashboard, which imports no torch) and tensors on any device,
where nothing waits for the host. The route kernel computes g and the gate rule too, the store's macro
``gate_statistic`` g; both are tested against this.
"""

from __future__ import annotations

from dataclasses import dataclass

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.policy import DENSE_SHARE, OTHER_LOSS
from routesparse.engine.method.solvers import solve, taken
from routesparse.kernels.arrays import Array, namespace


def gate_statistic(mass: Array, recent_mass: Array) -> Array:
    """g: mass is a mean over body rows (m-hat; with the audited mean in its place this is g*, the truth behind the
    conformal claim), recent_mass the mean over the recent rows, all of which the probe reads."""
    return namespace(mass).minimum(mass, recent_mass)


def risk(
    g: Array, disagreement: Array, alpha: float, predicted_error: Array | None = None, beta: float = 0.0
) -> Array:
    """R (eq. 4), at least 0. Errors: ValueError for beta without predicted errors."""
    xp = namespace(g)
    found = 1.0 - g + alpha * disagreement
    if beta:
        if predicted_error is None:
            raise ValueError("beta > 0 needs an error predictor")
        found = found + beta * predicted_error
    return xp.clip(found, 0.0, None)


@dataclass(frozen=True)
class Scores:
    """Everything the router may read, for the U = B * H units of one layer and segment and C candidates.

    The last candidate is dense: mass 1, disagreement 0. All arrays float64 [U, C], on the host or on the device.
    """

    mass: Array  # m-hat, mean over the routing rows
    recent_mass: Array
    disagreement: Array  # u
    density: Array
    kernel_us: Array
    predicted_error: Array | None = None  # e

    @property
    def gate_statistic(self) -> Array:
        """g."""
        return gate_statistic(self.mass, self.recent_mass)

    def risk(self, alpha: float, beta: float) -> Array:
        """R (eq. 4)."""
        return risk(self.gate_statistic, self.disagreement, alpha, self.predicted_error, beta)


@dataclass(frozen=True)
class Routing:
    """choice int64 [U]; limited: eq. 6 decided (not the gate alone); over_budget: the cheapest plan exceeds T_l."""

    choice: Array
    limited: Array
    over_budget: Array


def admissible(gate_statistic: Array, gate_threshold: float | Array) -> Array:
    """g >= lambda, elementwise. Dense keeps all mass and is admissible at any threshold."""
    return gate_statistic >= gate_threshold


def cheapest_admissible(gate_statistic: Array, cost: Array, gate_threshold: float | Array) -> Array:
    """The gate rule: per unit the cheapest admissible candidate, int64 [U]; g and cost [U, C], dense last."""
    xp = namespace(cost)
    price = xp.where(admissible(gate_statistic, gate_threshold), cost, xp.inf)
    price[:, -1] = cost[:, -1] * DENSE_SHARE
    return price.argmin(1)


def priced_threshold(gate_statistic: Array, priced: int | Array) -> Array:
    """lambda of each candidate under the policy "priced", [U, C]: its own g for a unit's floor at the price, and
    1 - OTHER_LOSS (1 - that g) for all others. gate_statistic: g [U, C]; priced: that floor's place, or int64 [U, 1].
    """
    xp = namespace(gate_statistic)
    is_floor = xp.arange(gate_statistic.shape[1], device=gate_statistic.device) == priced
    floor = xp.where(is_floor, gate_statistic, 0.0).sum(-1)[:, None]
    return xp.where(is_floor, floor, 1.0 - OTHER_LOSS * (1.0 - floor))


def choose(
    gate_statistic: Array,
    risk: Array,
    cost: Array,
    config: RouterConfig,
    gate_threshold: float | Array,
    limit_us: float | None,
) -> Routing:
    """Steps 3 and 4 for the U units of one layer and segment: g, risk and cost float64 [U, C], dense last.

    gate_threshold: lambda, or [U, C] of each candidate. limit_us: T_l - t_probe for these units, None without a limit.
    With the policies "priced" and "certified", candidates below the threshold are taken only where the limit leaves no
    other choice.
    """
    xp = namespace(cost)
    gates = config.gates
    gated = cheapest_admissible(gate_statistic, cost, gate_threshold)
    never = xp.zeros_like(cost[0, 0], dtype=xp.bool)
    if limit_us is None:
        assert gates
        return Routing(gated, never, never)
    limited = (taken(cost, gated).sum() > limit_us) if gates else ~never
    choice = xp.where(limited, solve(risk, cost, limit_us, config.solver), gated)
    over = limited & (taken(cost, choice).sum() > limit_us * (1 + 1e-9))
    return Routing(choice, limited, over)
