"""Probe, builders, router and certificate as a layer runs them, for benchmarks whose plan is fixed.

With random weights the decision means nothing, so the plan that runs is fixed and stated; but every step that
would have led to a plan is computed, and its cost counts.
"""

from __future__ import annotations

import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings, Pending
from routesparse.engine.decide.layer import begin
from routesparse.engine.device.graphs import Graphs
from routesparse.engine.device.inputs import AttentionInputs
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.segments import split

# What a tile costs changes which plan is chosen, not how long choosing takes.
_PROFILE = LatencyProfile(
    name="bench",
    device="bench",
    backend="triton",
    dtype="bfloat16",
    head_dim=128,
    groups=4,
    threads=1,
    block_q=128,
    block_k=64,
    row_us=0.05,
    tile_us=0.007,
    column_us=0.0002,
    dense_row_us=0.05,
    dense_tile_us=0.007,
    probe_base_us=100.0,
    probe_head_us=1.0,
    probe_key_us=1e-4,
    median_error=0.0,
)


class Decider:
    """Decides every segment of a layer and keeps nothing; graphs are captured at the first calls."""

    def __init__(self, segment_tokens: int) -> None:
        self.config = RouterConfig(segment_tokens=segment_tokens)
        self._settings = LayerSettings(self.config, 0.94, _PROFILE)
        self._graphs: Graphs = Graphs()

    def decide(self, index: int, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> list[Pending]:
        """Steps 1 to 5 for q [B, Hq, n, d], k and v [B, Hkv, n, d], as layer ``index``."""
        inputs = AttentionInputs(q, k, v, q.shape[3] ** -0.5)
        segments = split(q.shape[2], k.shape[2], self.config)
        return [begin(inputs, segment, index, self._settings, graphs=self._graphs) for segment in segments]
