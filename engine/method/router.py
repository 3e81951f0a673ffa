"""The router (paper section 3.4): the gate rule, and eq. 6 where a latency limit asks for it.

Four policies:

- ``priced``: one price for every block of every head and layer. A head takes its floor at the price, or a cheaper
  candidate that loses at most OTHER_LOSS of what that floor loses: a mean over the probe's rows does not see the rare
  rows that look something up, for which the floor keeps blocks.
- ``certified``: each head takes its cheapest candidate with g >= lambda (dense if none); T_l is a ceiling
  and eq. 6 is solved only where the sum exceeds it.
- ``budgeted`` (the paper): minimise total risk subject to t_probe + sum t_ker <= T_l; fallback may overrun it.
- ``strict``: as budgeted, and fallback only spends what is left of T_l.

Written once for NumPy arrays (replays in the dashboard, which imports no torch) and tensors on any device, where
nothing waits for the host. The route kernel has the gate rule too and is tested against this one.
"""

from __future__ import annotations

from dataclasses import dataclass

from routesparse.engine.config import RouterConfig
from routesparse.engine.method.policy import DENSE_SHARE, OTHER_LOSS
from routesparse.engine.method.solvers import solve, taken
from routesparse.kernels.arrays import Array, namespace


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
