"""Certificates of retained mass (paper section 3.3): three claims, never mixed.

1. In-prompt certificate (ours; the default for fallback). A one-sided lower confidence bound on the mean retained
   mass over this prompt's body rows, from C independent uniform rows that neither builders nor router have read.
   No calibration, no exchangeable prompts. Each of at most s tests per head runs at error (1 - q)/s, so the chance
   that any wrong candidate passes is at most 1 - q (union bound).
2. Conformal head certificate (the paper's delta_q): see calibration/artifact.py.
3. Row statement: the k-th smallest certificate row bounds a random body row of this prompt. For a unit whose
   candidate was kept after up to s tests it is taken at 1 - (1 - q)/s: the chance that a unit is kept *and* a random
   row of it lies below its bound is at most 1 - q. Nothing is claimed conditionally on having been kept.

Betting bound (Waudby-Smith and Ramdas, 2024): for a hypothesised mean mu the wealth

    W(mu) = prod_i (1 + lambda_i (x_i - mu)),   0 <= lambda_i <= c / mu,  lambda_i fixed before x_i is seen

has expectation at most 1 when the true mean is <= mu, so P(max_t W_t(mu) >= 1/alpha) <= alpha (Ville). W falls in
mu; the bound is the mu at which the wealth no longer reaches 1/alpha. numpy only; shapes [..., C].

The C rows are drawn with replacement: exactly independent, and no worse than distinct rows in any way that we could
measure. The best possible bound, with all C rows at mass 1, is 1 - ln(s/(1-q))/C: at q = .95, s = 3, C = 128 it falls
short of the truth by .032, so that a head needs a mass of about .932 to pass tau = .9.
"""

from __future__ import annotations

import math

import numpy as np

BISECTIONS = 24
BET_CAP = 0.98  # c: the largest share of the wealth that one row may cost


def betting_lower_bound(x: np.ndarray, error: float) -> np.ndarray:
    """Lower bound of the mean of variables in [0, 1] at level 1 - error: x [..., C] in drawn order -> [...].

    Bets are predictable: lambda_i = sqrt(2 ln(1/error) / (C v_{i-1})) with v_{i-1} the running variance of the rows
    before i (prior 1/4 with the weight of one row). Errors: ValueError for values outside [0, 1] or NaN.
    """
    x = _checked(x)
    bets = np.sqrt(2.0 * math.log(1.0 / error) / (x.shape[-1] * _running_variance(x)))
    low = np.zeros(x.shape[:-1])
    high = np.ones(x.shape[:-1])
    target = math.log(1.0 / error)
    for _ in range(BISECTIONS):
        mu = (low + high) / 2.0
        capped = np.minimum(bets, BET_CAP / np.maximum(mu, 1e-12)[..., None])
        wealth = np.log1p(capped * (x - mu[..., None])).cumsum(-1).max(-1)
        rejected = wealth >= target  # the mean is not as low as mu
        low = np.where(rejected, mu, low)
        high = np.where(rejected, high, mu)
    return low


def bernstein_lower_bound(x: np.ndarray, error: float) -> np.ndarray:
    """Empirical Bernstein (Maurer and Pontil, 2009, theorem 4), simpler and wider: x [..., C] -> [...].

    mean - sqrt(2 v ln(2/error) / C) - 7 ln(2/error) / (3 (C - 1)), v the sample variance.
    """
    x = _checked(x)
    count = x.shape[-1]
    log_term = math.log(2.0 / error)
    width = np.sqrt(2.0 * x.var(-1, ddof=1) * log_term / count) + 7.0 * log_term / (3.0 * (count - 1))
    return np.clip(x.mean(-1) - width, 0.0, 1.0)


def row_lower_bound(x: np.ndarray, confidence: float) -> np.ndarray:
    """The k-th smallest of C rows, k = floor((1 - q)(C + 1)): a random body row lies above it with probability >= q.

    0 where C is too small for the level (k = 0).
    """
    x = _checked(x)
    k = math.floor((1.0 - confidence) * (x.shape[-1] + 1))
    return np.partition(x, k - 1, axis=-1)[..., k - 1] if k >= 1 else np.zeros(x.shape[:-1])


def conformal_lower_mass(gate: np.ndarray, delta: float) -> np.ndarray:
    """Claim 2: m_low = clip(g - delta_q, 0, 1); an infinite delta promises nothing."""
    return np.clip(gate - delta, 0.0, 1.0)


def paper_error_bound(mass: np.ndarray, v_max: np.ndarray) -> np.ndarray:
    """Eq. 5: ||aV - a~V|| <= 2 (1 - m) V_max."""
    return 2.0 * (1.0 - mass) * v_max


def tight_error_bound(mass: np.ndarray, output_norm: np.ndarray, v_max: np.ndarray) -> np.ndarray:
    """(1 - m)(||o~|| + V_max): the error is (1 - m) ||mean of kept - mean of omitted|| exactly, and the mean of the
    kept values is the sparse output o~ itself."""
    return (1.0 - mass) * (output_norm + v_max)


def _checked(x: np.ndarray) -> np.ndarray:
    x = np.asarray(x, dtype=np.float64)
    if x.shape[-1] < 2 or not ((x >= 0.0) & (x <= 1.0)).all():
        raise ValueError("certificates need at least two rows with masses in [0, 1]")
    return x


def _running_variance(x: np.ndarray) -> np.ndarray:
    """v_{i-1} for every i: from the rows before i only."""
    count = np.arange(1, x.shape[-1] + 1)
    mean = (0.5 + x.cumsum(-1)) / (count + 1)
    squares = (0.25 + ((x - mean) ** 2).cumsum(-1)) / (count + 1)
    first = np.full((*x.shape[:-1], 1), 0.25)
    return np.maximum(np.concatenate([first, squares[..., :-1]], axis=-1), 1e-12)
