"""One pattern and one density for every layer and head: the fixed budget that conditional routing must beat.

``FixedSession(config, "vertical_slash", 0.2)`` keeps a fifth of the causal area in every head, with indices built
online from the same probe. The tail is dense, as in routing, unless ``config.tail_tokens`` is 0.
``WindowSession`` is the control that must lose mid-context needles: sink and local window in every row, also in
the tail and in decoded rows; a dense tail or dense decoding would read the needles and hide the loss.
"""

from __future__ import annotations

from dataclasses import replace

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ConfigError
from routesparse.engine.method import families
from routesparse.engine.method.attend import dense_attention
from routesparse.engine.method.families.vertical_slash import MAX_COLUMNS
from routesparse.engine.method.family import Context
from routesparse.engine.method.inputs import AttentionInputs
from routesparse.engine.method.patterns import Candidate
from routesparse.engine.method.probe import run_probe
from routesparse.engine.method.probe_rows import draw_rows
from routesparse.engine.method.row_plan import joined, lower
from routesparse.engine.method.segments import Segment, split
from routesparse.engine.rows import Pattern
from routesparse.engine.runtime.attention_router import AttentionRouter
from routesparse.engine.seeds import stable_seed
from routesparse.kernels.interface import RowPlan, sparse_attention

PATTERNS: tuple[Pattern, ...] = ("a_shape", "vertical_slash", "block_sparse")


class FixedSession(AttentionRouter):
    """An attention router with one decision; ``densities`` collects the kept share of every layer pass.

    The mean density meets ``density`` within a few percent: the aim is corrected from layer to layer.
    """

    def __init__(self, config: RouterConfig, pattern: Pattern, density: float) -> None:
        if pattern not in PATTERNS or not 0.0 < density <= 1.0:
            raise ConfigError(
                f"fixed plan {pattern!r} at density {density:g}; use {', '.join(PATTERNS)}, (0, 1]"
            )
        self.config = config
        self.pattern: Pattern = pattern
        self.density = density
        self.densities: list[float] = []
        self._aim = density

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """See ``AttentionRouter.attend``; decoding and layers with a sliding window run dense."""
        rows, keys = inputs.q.shape[2], inputs.k.shape[2]
        segments = split(rows, keys, self.config)
        if rows == 1 or window is not None or any(s.body_blocks < 1 for s in segments):
            return dense_attention(inputs, window)
        plans = [self._plan(inputs, segment, layer) for segment in segments]
        plan = joined(plans)
        self.densities.append(float(plan.head_density().mean()))
        # Columns overlap bands and the tail is dense, so a plan misses its aim by a factor that hardly changes.
        self._aim = min(1.0, self._aim * self.density / self.densities[-1])
        return sparse_attention(inputs.q, inputs.k, inputs.v, plan, inputs.scale)[0]

    def _candidate(self, segment: Segment) -> Candidate:
        return fixed_candidate(segment, self.pattern, self._aim)

    def _plan(self, inputs: AttentionInputs, segment: Segment, layer: int) -> RowPlan:
        candidate = self._candidate(segment)
        family, probe = families.find(self.pattern), None
        if family.needs_probe:
            batch, heads = inputs.q.shape[:2]
            seed = stable_seed(self.config.seed, layer, segment.index)
            rows = draw_rows(segment, batch, heads, self.config, seed, inputs.first_keys())
            probe = run_probe(inputs, segment, rows, self.config)
        index = family.build(Context(inputs, segment, [candidate], probe), [candidate])
        choice = np.zeros(inputs.q.shape[:2], dtype=np.int64)
        return lower(inputs, segment, {self.pattern: index}, (candidate,), choice)


class WindowSession(FixedSession):
    """The window-only control: the sink block and the last ``window_tokens`` keys, in prefill and in decoding."""

    def __init__(self, config: RouterConfig, window_tokens: int) -> None:
        super().__init__(replace(config, tail_tokens=0), "a_shape", 1.0)
        self.window_tokens = window_tokens

    def attend(self, inputs: AttentionInputs, *, layer: int, window: int | None = None) -> torch.Tensor:
        """As FixedSession.attend; a decoded row reads what a prefilled row would."""
        block = self.config.block_k
        if inputs.q.shape[2] == 1 and inputs.k.shape[2] > self.window_tokens + block:
            k, v = (
                torch.cat([x[:, :, :block], x[:, :, -self.window_tokens :]], dim=2)
                for x in (inputs.k, inputs.v)
            )
            inputs = replace(inputs, k=k, v=v)
        return super().attend(inputs, layer=layer, window=window)

    def _candidate(self, segment: Segment) -> Candidate:
        return Candidate(0, "a_shape", 0, self.window_tokens // segment.block_k, block_k=segment.block_k)


def fixed_candidate(segment: Segment, pattern: Pattern, density: float) -> Candidate:
    """The budget of ``pattern`` that keeps ``density`` of the segment's causal area (columns and bands half each)."""
    if pattern != "vertical_slash":
        blocks = segment.blocks_for_density(density)
        return Candidate(0, pattern, 0, blocks, block_k=segment.block_k)
    columns = min(MAX_COLUMNS, max(16, round(density / 2 * segment.keys)))
    bands = segment.blocks_for_density(max(0.0, density - columns / segment.keys))
    return Candidate(0, pattern, 0, bands, columns, block_k=segment.block_k)
