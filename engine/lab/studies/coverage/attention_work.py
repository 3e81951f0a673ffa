"""Where a domain's attention work comes from: which units are dense, why, and what would make them sparse.

A unit is dense by the router because the cheapest candidate that reaches lambda costs more than dense: a sparse head
pays for every query block whatever it reads. ``without_fixed_costs`` replays the gate rule where only the share of the
tiles that are read counts, ``by_true_mass`` that with the audited truth in place of g: what is left to gain from a
better kernel, and from a perfect probe.
"""

from __future__ import annotations

from typing import Any

import numpy as np
import pandas as pd

from routesparse.engine.config import RouterConfig
from routesparse.engine.lab.studies.coverage.controls import Candidates
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split


def decompose(units: pd.DataFrame, profile: LatencyProfile) -> dict[str, Any]:
    """Shares of the units, and their attention work (dense: 1), tail excluded."""
    candidates = Candidates(units)
    passing = candidates.passing(candidates.gate_statistic)
    truly = candidates.passing(candidates.target)
    sparse, fallback = units["is_sparse"].to_numpy(), units["fallback"].to_numpy() == 2
    by_router = ~sparse & ~fallback
    read = _shares(candidates, profile)
    dense_layers = units.assign(by_router=by_router).groupby("layer")["by_router"].mean()
    return {
        "work": float(units["density"].mean()),
        "sparse": float(sparse.mean()),
        "density_of_sparse": float(units["density"][sparse].mean()),
        "dense_by_fallback": float(fallback.mean()),
        "dense_cheaper_than_sparse": float(by_router.mean()),
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
