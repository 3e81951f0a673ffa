"""Block scores (METHOD 13.2): what share of a query block's rows each KV block holds, estimated without reading keys.

Some rows of each query block, half of them those that stand out, meet descriptions of each KV block: mean and variance
of one or two clusters of its keys. The logit of row q and a cluster is that of a key drawn from a normal distribution
of this mean and variance,

    scale q . mean + VARIANCE_WEIGHT / 2 sum_d (scale q_d)^2 var_d + ln(keys of the cluster),

where the variance counts a little less than it would for normal keys. A softmax over the KV blocks that start at or
before the row gives shares, and the score is their root mean square over the rows: a mean would let one row in a
hundred lose all that it reads. The softmax's normaliser samples tiles of KV blocks far from both ends.
"""

from __future__ import annotations

from routesparse.kernels.block_score import launch, naive
from routesparse.kernels.block_score.contract import LEAST_SCORE
from routesparse.kernels.common import dispatched

__all__ = ["LEAST_SCORE", "block_score"]

block_score = dispatched(naive.block_score, launch.block_score)
