"""What random rows say about all rows: shares and means with confidence bounds. NumPy only.

Rows are drawn uniformly, with replacement and independently for each head, after the attention under test is fixed:
nothing depends on them, so no error is split. H heads with C rows each are N = H C rows; p_h is the share of head h's
rows that have some property, p the mean of the p_h. Where all heads have as many rows, p is the share among all (head,
row) pairs; in a batch of prompts of several lengths each prompt counts as much as another, however long it is. A layer
pools its heads (and prompts), a run those of all layers. Every claim holds at the full confidence 1 - error for itself
alone.

**The largest error seen.** With confidence 1 - error at least the share error^(1/N) of the pairs has an error of at
most the largest one seen (``share_within_largest``). Proof: let s be that share and x the smallest error that at least
the share s of the pairs does not exceed. The claim is wrong only if every drawn error is below x. Head h's draws are
all below x with probability F_h^C, where F_h is the share of its rows below x. The product over heads is at most the
N-th power of the mean of the F_h (means of H numbers), and that mean is below s by the choice of x. So the claim is
wrong with probability below s^N = error.

**A share.** If k of N drawn rows have a property, p is at most ``most_share(k, N, error)``. For one head that is
the bound of Clopper and Pearson (1934). For several it holds too: the count K is a sum of independent indicators, and
where k <= N p - 1, P(K <= k) is at most that of the binomial distribution with N and p (Hoeffding, 1956, theorem 4).
The bound u is at least (k + 1)/N, so p > u implies k <= N p - 1, and then P(K <= k) is at most the binomial probability
at p, which is at most that at u, which is at most the error. For k = 0 the inequality of means above gives the same
without that condition, and u = 1 - error^(1/N): a property that no drawn row has is one that at most this share has.

So a fault that touches a share f of the pairs escapes all N rows with probability at most (1 - f)^N. A fault with
f >= 1 - error^(1/N) is seen with probability at least 1 - error; a rarer one may go unseen.

**A mean** of values in [0, 1] is bounded by betting: a head's in ``kernels/betting_bound/naive.py``, that of a layer or
run in ``engine/method/layer_certificate.py``. A relative error may exceed 1, so its mean is that of min(error, 1).
"""

from __future__ import annotations

import numpy as np

from routesparse.engine.method.layer_certificate import layer_lower_mass
from routesparse.kernels.betting_bound import betting_lower_bound


def share_within_largest(rows: int, error: float) -> float:
    """error^(1/N): at least this share of all rows is at most the largest of N drawn ones."""
    return float(error ** (1.0 / rows))


def most_share(count: int, rows: int, error: float) -> float:
    """Upper bound of the share of rows with a property that ``count`` of ``rows`` drawn ones have."""
    from scipy.stats import beta

    if count >= rows:
        return 1.0
    return max(float(beta.ppf(1.0 - error, count + 1, rows - count)), (count + 1) / rows if count else 0.0)


def least_mean(x: np.ndarray, error: float) -> float:
    """Lower bound of the mean over heads and rows: x float64 [H, C] in [0, 1], rows in drawn order.

    Errors: ValueError with fewer than two rows or values outside [0, 1].
    """
    x = np.asarray(x, dtype=np.float64)
    bound = betting_lower_bound(x[0], error) if len(x) == 1 else layer_lower_mass(x, error)
    # It may have been reached by the first rows alone and exceed what all of them show: no news for a reader.
    return min(float(bound), float(x.mean()))


def most_mean(x: np.ndarray, error: float) -> float:
    """Upper bound of the mean of values in [0, 1]; x and errors as ``least_mean``."""
    return 1.0 - least_mean(1.0 - np.asarray(x, dtype=np.float64), error)
