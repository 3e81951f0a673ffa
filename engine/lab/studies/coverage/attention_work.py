"""Where a domain's attention work comes from: which units are dense, why, and what would make them sparse.

A unit is dense by the router because no candidate reaches lambda, or because the cheapest that does costs more than
dense: a sparse head pays for every query block whatever it reads. ``without_fixed_costs`` replays the gate rule where
only the share of the tiles that are read counts, ``by_true_mass`` that with the audited truth in place of g and tau in
place of lambda: what is left to gain from a better kernel, and from a perfect probe. Under the policy "priced" some
candidate always reaches lambda, and by the truth lambda is the true mass of the candidate at the price.

Under the policy "certified" at tau .9: at 8,192 tokens the work is .43 on prose, code and dialog. A quarter of the
units is dense by the router, nearly all because dense costs less than the cheapest candidate that passes: on the CPU a
sparse head pays 160 us per query block whatever it reads, so it gains only below a density of .60 (.52 at 4,096
tokens, .67 at 16,384). These units sit in the flat heads of layers 0 and 6 (mean probe entropy 2.9 for 1.2). Without
that cost the same gate would read .36; with the true mass in place of g and tau in place of lambda, .29. The rest is
the margin lambda - tau = .04 that the certificate needs with 128 rows. At 16,384 tokens the work is .32.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.config import RouterConfig
from routesparse.engine.lab.studies.coverage.controls import Candidates
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split


def decompose(units: pd.DataFrame, profile: LatencyProfile, tau: float) -> dict[str, Any]:
    """Shares of the units, and their attention work (dense: 1), tail excluded. tau: of the policy "certified"."""
    candidates = Candidates(units)
    passing = candidates.passing(candidates.gate_statistic)
    truly = candidates.passing(candidates.target) if "priced" in units else candidates.target >= tau
    sparse, fallback = units["is_sparse"].to_numpy(), units["fallback"].to_numpy() == 2
    by_router = ~sparse & ~fallback
    reached = (candidates.sparse & passing).any(1)
    read = _shares(candidates, profile)
    dense_layers = units.assign(by_router=by_router).groupby("layer")["by_router"].mean()
    return {
        "work": float(units["density"].mean()),
        "sparse": float(sparse.mean()),
        "density_of_sparse": float(units["density"][sparse].mean()),
        "dense_by_fallback": float(fallback.mean()),
        "dense_none_reaches_lambda": float((by_router & ~reached).mean()),
        "dense_cheaper_than_sparse": float((by_router & reached).mean()),
        "dense_by_router_by_layer": {str(layer): float(share) for layer, share in dense_layers.items()},
        "entropy": {
            "sparse": float(units["entropy"][sparse].mean()),
            "dense_by_router": float(units["entropy"][by_router].mean()) if by_router.any() else None,
        },
        "without_fixed_costs": _least(read, candidates, passing),
        "by_true_mass": _least(read, candidates, truly),
    }


def _shares(candidates: Candidates, profile: LatencyProfile) -> np.ndarray:
    """Share of the body's tiles that a candidate reads [units, C], columns counted at what they cost; dense: 1.

    A sparse candidate costs a fixed part and a price per tile; see ``LatencyProfile.sparse_us``.
    """
    places = list(zip(candidates.units["tokens"], candidates.units["segment"], strict=True))
    parts = {place: _parts(profile, *place) for place in set(places)}
    fixed, full = np.array([parts[place] for place in places]).T
    return np.where(candidates.is_dense, 1.0, (candidates.cost - fixed[:, None]) / full[:, None])


def _parts(profile: LatencyProfile, tokens: int, segment: int) -> tuple[float, float]:
    """Fixed cost of a sparse head, and what reading all of its body's tiles would add, microseconds."""
    of = split(tokens, tokens, RouterConfig(), 0)[segment]
    nothing = float(profile.sparse_us(of, np.zeros(()), np.zeros(())))
    return nothing, float(profile.sparse_us(of, np.array(of.causal_tiles()), np.zeros(()))) - nothing


def _least(read: np.ndarray, candidates: Candidates, allowed: np.ndarray) -> float:
    """Mean over units of the least share that an allowed candidate reads, dense among them."""
    allowed = (allowed & candidates.sparse) | candidates.is_dense
    return float(np.where(allowed, read, np.inf).min(1).mean())
