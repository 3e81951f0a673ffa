"""Step 3 (paper section 3.4) as tensor operations: what every candidate keeps, costs and risks."""

from __future__ import annotations

from typing import TYPE_CHECKING

from routesparse.engine.method.records import RECENT, ROUTING
from routesparse.engine.method.router import Scores, gate_statistic

if TYPE_CHECKING:
    import torch

    from routesparse.engine.decide.settings import LayerSettings
    from routesparse.engine.method.records import CandidateMass, Descriptors, Probe
    from routesparse.engine.method.segments import Segment


def score_candidates(
    segment: Segment, probe: Probe, masses: CandidateMass, described: Descriptors, settings: LayerSettings
) -> Scores:
    """The scores of the U = B * H units' candidates, float64 [U, C] each, dense last."""
    kernel_us = settings.profile.sparse_us(segment, by_unit(masses.tiles), by_unit(masses.columns))
    kernel_us[:, -1] = settings.profile.dense_us(segment)
    mass, recent_mass = (masses.group_mean(probe, kind) for kind in (ROUTING, RECENT))
    disagreement = masses.disagreement(probe)
    predicted = None
    if settings.predictor is not None:
        gate_mass = gate_statistic(mass, recent_mass)
        predicted = settings.predictor(gate_mass, disagreement, described.entropy.unsqueeze(-1))
        predicted[..., -1] = 0.0
        predicted = by_unit(predicted)
    return Scores(
        mass=by_unit(mass),
        recent_mass=by_unit(recent_mass),
        disagreement=by_unit(disagreement),
        density=by_unit(masses.density),
        kernel_us=kernel_us,
        predicted_error=predicted,
    )


def by_unit(x: torch.Tensor) -> torch.Tensor:
    """[B, H, ...] -> float64 [U, ...]."""
    return x.flatten(0, 1).double()
