"""Ladders of tests that the engine does not take, to compare its own with: unequal errors, bets fixed beforehand."""

from __future__ import annotations

import math

import numpy as np

from routesparse.kernels.arrays import Array, namespace
from routesparse.kernels.betting_bound.naive import checked

FIRST_SHARE = 0.8  # of a ladder's error that its first test gets where the error is split unequally
FIXED_BET_CAP = 0.95  # c of a fixed bet: a row of mass 0 leaves a twentieth of the wealth
TYPICAL_VARIANCE = 0.01  # of a head's masses about tau, as a fixed bet supposes; a wrong one costs power only


def errors_of_ladder(confidence: float, max_tests: int) -> tuple[float, ...]:
    """Unequal errors whose sum is 1 - q, first test first: .04, .005, .005 at q = .95, s = 3.

    Valid for any ladder that is fixed beforehand and tested from the cheap side, dearer rungs unread (union bound).
    """
    if max_tests == 1:
        return (1.0 - confidence,)
    later = (1.0 - FIRST_SHARE) * (1.0 - confidence) / (max_tests - 1)
    return (FIRST_SHARE * (1.0 - confidence), *[later] * (max_tests - 1))


def fixed_bet(tau: float, error: float, masses: int) -> float:
    """The bet for a test of mean >= tau on so many masses (C of a head, H C of a layer), fixed beforehand.

    min(sqrt(2 ln(1/error) / (masses v)), c/tau), the best one for masses of variance v. At tau = .9 and error = .05 it
    is 1.056 for a head of up to 537 rows and .76 for a layer with H = 8 and C = 128. As measured, it passes a head as
    often as the betting bound at the same error does, and a layer less often than layer_passes does.
    """
    return min(math.sqrt(2.0 * math.log(1.0 / error) / (masses * TYPICAL_VARIANCE)), FIXED_BET_CAP / tau)


def passes_at_fixed_bets(x: Array, tau: float, error: float, bets: tuple[float, ...]) -> Array:
    """Whether the layer's mean is certified to reach tau: x float64 [..., H, C] -> bool [...]; a head has H = 1.

    The wealth is the average over the bets of prod (1 + bet (x - tau)); an average of supermartingales is one, and no
    centres are used. Never loses by more mass, which is what rule 3 needs.
    Errors: ValueError for a bet outside (0, 1/tau), or masses as in layer_lower_mass.
    """
    if not bets or not all(0.0 < bet * tau < 1.0 for bet in bets):
        raise ValueError(f"bets {bets} must lie between 0 and 1/tau = {1 / tau:g}")
    xp = namespace(x)
    x = checked(x) if xp is np else x
    wealth = xp.log1p(bets[0] * (x - tau)).sum(-2).cumsum(-1)
    for bet in bets[1:]:
        wealth = xp.logaddexp(wealth, xp.log1p(bet * (x - tau)).sum(-2).cumsum(-1))
    return xp.amax(wealth, -1) >= math.log(len(bets) / error)
