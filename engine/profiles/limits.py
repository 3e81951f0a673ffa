"""The least time limit T_l that leaves a layer's probe its time, as a profile predicts it. No torch: the form asks."""

from __future__ import annotations

from dataclasses import dataclass

from routesparse.engine.config import LatencyBudget, RouterConfig
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split


@dataclass(frozen=True)
class LeastLimit:
    """In microseconds a layer; a limit has to be above it. dense_us: what dense attention is predicted to take."""

    limit_us: float
    dense_us: float

    @property
    def share(self) -> float:
        """The same as a share of dense."""
        return self.limit_us / self.dense_us

    def leaves(self, budget: LatencyBudget) -> bool:
        """Whether a limit leaves every segment's probe its time."""
        return budget.limit_us(self.dense_us) > self.limit_us


def least_limit(profile: LatencyProfile, tokens: int, heads: int, config: RouterConfig) -> LeastLimit:
    """Of one prompt: each segment gets the part of T_l that its dense work is of the layer's, and needs its probe."""
    segments = split(tokens, tokens, config)
    works_us = [heads * profile.dense_us(segment) for segment in segments]
    total_us = sum(works_us)
    needed = max(
        profile.probe_us(segment, heads) * total_us / work
        for segment, work in zip(segments, works_us, strict=True)
    )
    return LeastLimit(needed, total_us)
