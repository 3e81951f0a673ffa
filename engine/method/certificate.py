"""Certificates of retained mass (paper section 3.3): three claims, never mixed.

1. In-prompt certificate (ours; what fallback reads). A one-sided lower confidence bound on the mean retained
   mass over this prompt's body rows, from C independent uniform rows that neither builders nor router have read.
   No calibration, no exchangeable prompts. Under the policy "priced" each rung of a head's ladder is tested at error
   1 - q (``kept_rung``); under the others each of at most s tests runs at (1 - q)/s, so that the chance that any wrong
   candidate passes is at most 1 - q (union bound). The betting bound has its formula in
   ``kernels/betting_bound/naive.py``.
2. Conformal head certificate (the paper's delta_q): m_low = clip(g - delta_q, 0, 1); see calibration/artifact.py.
3. Row statement: the k-th smallest certificate row bounds a random body row of this prompt. For a unit whose
   candidate was kept after up to s tests it is taken at 1 - (1 - q)/s: the chance that a unit is kept *and* a random
   row of it lies below its bound is at most 1 - q. Nothing is claimed conditionally on having been kept.

Arrays are NumPy's or torch's, rows last: [..., C]. A tensor's values are not checked, since on a GPU the host would
have to wait for them.

The C rows are drawn with replacement: exactly independent, and no worse than distinct rows in any way that we could
measure. The best possible bound, with all C rows at mass 1, is 1 - ln(s/(1-q))/C: at q = .95, s = 3, C = 128 it falls
short of the truth by .032, so that a head needs a mass of about .932 to pass tau = .9.

A ladder need not split its error (``kept_rung``). Let its rungs be fixed before the certificate rows are read, test
each one at the full error 1 - q, and keep the cheapest rung that passes together with every dearer one. Proof: the kept
rung's mean is below tau only if the dearest of all rungs with such a mean passed, which happens with probability at
most 1 - q. Rungs may cross families, and any valid test will do. The resolution becomes ln(1/(1-q))/C, .023 in the
example. What may be claimed of the kept rung's mean is in ``stepwise_lower_mass``.

The mean over all heads of a layer has a bound of its own, in ``layer_certificate.py``.
"""

from __future__ import annotations

import math

import numpy as np

from routesparse.engine.config import BoundName
from routesparse.kernels.arrays import Array, namespace
from routesparse.kernels.betting_bound import betting_lower_bound
from routesparse.kernels.betting_bound.naive import checked


def error_of_a_test(confidence: float, max_tests: int) -> float:
    """(1 - q)/s: what each of a unit's at most s tests may err, so that together they err at most 1 - q."""
    return (1.0 - confidence) / max_tests


def kept_rung(passed: Array) -> Array:
    """The cheapest rung that passes together with every dearer one: bool [..., s], cheapest first -> int64 [...].

    s where the dearest fails. A ladder's missing rungs stand at its dear end and count as passed: a place in that part
    means that no rung is kept.
    """
    return passed.shape[-1] - _run_from_the_dearest(passed).sum(-1)


def stepwise_lower_mass(bounds: Array, tau: float, passed: Array | None = None) -> Array:
    """What may be claimed of the rung that kept_rung(passed) keeps: bounds [..., s] at 1 - error -> [...].

    passed bool [..., s]: whether each bound reaches tau, where that was found in another way; None: bounds >= tau.

    The least bound where every rung passes, else tau; NaN where none is kept. Missing rungs have inf for a bound.
    The claim is wrong with probability at most error (stepwise intervals; Hsu and Berger, 1999). Proof: suppose first
    that some mean is below tau. Unless the bound of the dearest such rung is above its mean, that rung fails: then all
    kept rungs are dearer, their means are at least tau, and tau is what is claimed. Otherwise tau is a bound of every
    rung's mean, and so is the least bound, unless the bound of the rung with the least mean is above that mean.
    """
    xp = namespace(bounds)
    run = _run_from_the_dearest(bounds >= tau if passed is None else passed)
    kept = ((run > 0) & xp.isfinite(bounds)).any(-1)
    # A bound that was found to reach tau may have been rounded below it.
    least = xp.clip(xp.amin(bounds, -1), tau, None)
    return xp.where(kept, xp.where(run[..., 0] > 0, least, tau), math.nan)


def _run_from_the_dearest(passed: Array) -> Array:
    """1 for every rung that passes together with all dearer ones, else 0: bool [..., s] -> int64 [..., s]."""
    xp = namespace(passed)
    return xp.flip(xp.flip(passed, (-1,)).cumprod(-1), (-1,))


def in_prompt_lower_mass(x: Array, confidence: float, max_tests: int, bound: BoundName) -> Array:
    """Claim 1: x float64 [..., C], masses in drawn order -> lower bound of their mean for one of s tests, [...]."""
    error = error_of_a_test(confidence, max_tests)
    return betting_lower_bound(x, error) if bound == "betting" else bernstein_lower_bound(x, error)


def bernstein_lower_bound(x: Array, error: float) -> Array:
    """Empirical Bernstein (Maurer and Pontil, 2009, theorem 4), simpler and wider: x [..., C] -> [...].

    mean - sqrt(2 v ln(2/error) / C) - 7 ln(2/error) / (3 (C - 1)), v the sample variance.
    """
    xp = namespace(x)
    if xp is np:
        x = checked(x)
    count = x.shape[-1]
    log_term = math.log(2.0 / error)
    variance = xp.var(x, -1, correction=1)
    width = xp.sqrt(2.0 * variance * log_term / count) + 7.0 * log_term / (3.0 * (count - 1))
    return xp.clip(x.mean(-1) - width, 0.0, 1.0)


def row_lower_bound(x: np.ndarray, confidence: float) -> np.ndarray:
    """Claim 3: the k-th smallest of C rows, k = floor((1 - q)(C + 1)); a random body row lies above it with
    probability >= q. 0 where C is too small for the level (k = 0).
    """
    x = checked(x)
    k = math.floor((1.0 - confidence) * (x.shape[-1] + 1))
    return np.partition(x, k - 1, axis=-1)[..., k - 1] if k >= 1 else np.zeros(x.shape[:-1])


def conformal_lower_mass(gate_statistic: np.ndarray, delta: float) -> np.ndarray:
    """Claim 2: m_low = clip(g - delta_q, 0, 1); an infinite delta promises nothing."""
    return np.clip(gate_statistic - delta, 0.0, 1.0)


def paper_error_bound(mass: np.ndarray, v_max: np.ndarray | float) -> np.ndarray:
    """Eq. 5: ||aV - a~V|| <= 2 (1 - m) V_max."""
    return 2.0 * (1.0 - mass) * v_max


def tight_error_bound(mass: np.ndarray, output_norm: np.ndarray, v_max: np.ndarray | float) -> np.ndarray:
    """(1 - m)(||o~|| + V_max): the error is (1 - m) ||mean of kept - mean of omitted|| exactly, and the mean of the
    kept values is the sparse output o~ itself."""
    return (1.0 - mass) * (output_norm + v_max)
