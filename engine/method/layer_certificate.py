"""The layer's certificate: the mean retained mass over the heads and body rows of one layer, bounded from below.

x [..., H, C]: masses in [0, 1] of H heads at C certificate rows each, in drawn order. Rows are drawn uniformly, with
replacement and apart for each head, so given the plan all H C masses are independent, and those of head h have one
mean mu_h. The claim is about the layer's mean mu* = (mu_1 + ... + mu_H) / H; a dense head takes part with x = 1.
Float64, NumPy's arrays or torch's; nothing waits for the host.

The bound. Round j takes one row of every head. The bet b_j > 0 and the centres d_hj, whose sum over h is 0, depend on
the rounds before j only. For a hypothesised mean mu, with D_j = max_h d_hj and b_j <= c/(mu + D_j), c < 1, the wealth
after round i is

    W_i(mu) = prod_{j <= i} prod_h (1 + b_j (x_hj - mu - d_hj))

Where mu* <= mu, P(max_i W_i(mu) >= 1/error) <= error. Proof: no factor is below 1 - c, since x >= 0. Given the rounds
before j the masses are independent, so E[prod_h (...)] = prod_h (1 + b_j (mu_h - mu - d_hj)). A product of H numbers
above 0 is at most the H-th power of their mean, and their mean is 1 + b_j (mu* - mu) <= 1, because the centres' sum is
0. So W is a nonnegative supermartingale over rounds that starts at 1, and Ville's inequality ends the proof. Heads may
differ as they like. Only whole rounds count: inside one, heads with high means may come first.

W_i(mu) falls in mu: a factor is 1 + b (x - mu - d), or 1 - c + c (x + D - d)/(mu + D) where the bet is at its cap. So
the means that are not rejected are an interval, and the bound is its lower end.

The bets are b_j = min(sqrt(2 ln(1/error) / (H C v)), c/(mu + D_j)), with v the running variance of x - d; the centre of
a head is the sum of its past masses less that of the heads' average, over j. So what the heads differ by costs nothing
once it is known. With H = 1 this is the bound of ``kernels/betting_bound/naive.py``. The resolution (all masses 1) is
about ln(1/error)/(H C): .0027 at H = 8, C = 128, error .05. A bet on each round's average over heads would be valid
too, but never resolves better than ln(1/error)/C.

Levels of a layer. A level is a plan of all heads; levels are fixed before certificate rows are read. What is valid:

1. One level, tested at the full error.
2. Any ladder of levels, each tested at the full error: keep the cheapest one that passes together with every dearer
   one (``certificate.kept_rung``). Levels need not be nested, and any valid test will do.
3. A nested ladder (no row's mass falls from a level to the next dearer one), tested from the cheap side at the full
   error, dearer levels unread: with one set of bets fixed beforehand (code at commit b6dfeee2). Then every factor rises
   with x, so the wealth at tau is the higher the dearer the level. If a level with mean below tau passes, so does the
   dearest such level, which happens with probability at most error. The bets above depend on the masses, so this
   argument does not cover them, and rule 2 is what the code follows.

Floors of single heads. "The layer's mean is at least tau, and each head's at least tau_head" may be tested without a
union bound where it is claimed or dropped as a whole: if it is false then one of its parts is, and that part alone
passes with probability at most error (intersection-union test; Berger, 1982). If instead a head below its floor becomes
dense, the layer's claim stands, since its mean only rises, but each floor is a claim about its own head at its own
error, and the claim for all heads at once has the sum of their errors. At a level that the masses chose, a head keeps
its floor only if it reaches it there and at every dearer level (``kept_rung`` of its own tests, at the full error). We
recommend the layer's claim at q, and every head's at q about that head alone.
"""

from __future__ import annotations

import math

import numpy as np

from routesparse.kernels.arrays import Array, namespace
from routesparse.kernels.betting_bound import BET_CAP
from routesparse.kernels.betting_bound.naive import checked

# The bound is found to 2^-24 in rounds of 4 bits: on a GPU a launch costs more than the 15 means tried at once.
SEARCH_ROUNDS, SEARCH_PARTS = 6, 16


def layer_lower_mass(x: Array, error: float) -> Array:
    """x float64 [..., H, C] -> lower bound of the layer's mean at level 1 - error, [...].

    Errors: ValueError for a NumPy array with fewer than two rows or values outside [0, 1].
    """
    xp = namespace(x)
    x = checked(x) if xp is np else x
    centres, bets = centres_and_bets(x, error)
    inner = xp.arange(1, SEARCH_PARTS, dtype=x.dtype, device=x.device)
    x, centres, bets = x[..., None, :, :], centres[..., None, :, :], bets[..., None, :]
    low = xp.zeros_like(x[..., 0, 0, 0])
    width = 1.0
    for _ in range(SEARCH_ROUNDS):
        width /= SEARCH_PARTS
        wealth = log_wealth(x, low[..., None] + width * inner, centres, bets)
        # The wealth falls in mu, so those that reach the target are the lowest ones.
        reached = xp.amax(wealth, -1) >= math.log(1.0 / error)
        low = low + width * reached.sum(-1)
    return low


def layer_passes(x: Array, tau: float, error: float) -> Array:
    """Whether layer_lower_mass(x, error) >= tau, from the wealth at tau alone: x float64 [..., H, C] -> bool [...].

    tau in (0, 1]. Errors: as layer_lower_mass.
    """
    xp = namespace(x)
    x = checked(x) if xp is np else x
    wealth = log_wealth(x, xp.full_like(x[..., 0, 0], tau), *centres_and_bets(x, error))
    return xp.amax(wealth, -1) >= math.log(1.0 / error)


def centres_and_bets(x: Array, error: float) -> tuple[Array, Array]:
    """d [..., H, C] and the bets before their cap [..., C], each round's from the rounds before it only.

    A centre counts one row of the layer's mean for every head; v counts one row of variance 1/4, and is at least 1e-12.
    """
    xp = namespace(x)
    heads, rows = x.shape[-2:]
    rounds = xp.cumsum(xp.ones_like(x[..., 0, :]), -1)
    ahead = (x - x.mean(-2)[..., None, :]).cumsum(-1)
    centres = _a_round_later(ahead, 0.0) / rounds[..., None, :]
    rest = x - centres
    count = heads * rounds + 1
    mean = (0.5 + rest.sum(-2).cumsum(-1)) / count
    squares = (0.25 + xp.square(rest - mean[..., None, :]).sum(-2).cumsum(-1)) / count
    variance = xp.clip(_a_round_later(squares, 0.25), 1e-12, None)
    return centres, xp.sqrt(2.0 * math.log(1.0 / error) / (heads * rows * variance))


def log_wealth(x: Array, mu: Array, centres: Array, bets: Array) -> Array:
    """ln W_i(mu) after every round: x, centres [..., H, C], mu > 0 [...], uncapped bets [..., C] -> [..., C]."""
    xp = namespace(x)
    capped = xp.minimum(bets, BET_CAP / (mu[..., None] + xp.amax(centres, -2)))
    growth = capped[..., None, :] * (x - mu[..., None, None] - centres)
    return xp.log1p(growth).sum(-2).cumsum(-1)


def _a_round_later(values: Array, first: float) -> Array:
    xp = namespace(values)
    return xp.concatenate([xp.full_like(values[..., :1], first), values[..., :-1]], -1)
