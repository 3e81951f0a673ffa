"""The six steps of the paper's table, in order, for one layer and one prompt segment (section 3.4)."""

from __future__ import annotations

import hashlib
import time
from dataclasses import dataclass, replace

import numpy as np
import torch

from routesparse.engine import coverage, descriptors, fallback, router
from routesparse.engine.builders import FamilyIndex, build_indices
from routesparse.engine.config import RouterConfig
from routesparse.engine.errors import ConfigError
from routesparse.engine.execute import lower
from routesparse.engine.latency import LatencyProfile
from routesparse.engine.patterns import Candidate, library
from routesparse.engine.predictor import PredictorTables
from routesparse.engine.probe import (
    CERTIFICATE,
    RECENT,
    ROUTING,
    AttentionInputs,
    Probe,
    draw_rows,
    run_probe,
)
from routesparse.engine.records import Pattern
from routesparse.engine.risk import Scores
from routesparse.engine.segments import Segment
from routesparse.kernels.interface import RowPlan


@dataclass(frozen=True)
class Decision:
    """What was decided for the U = B * H units of one layer and segment, and everything it was decided on."""

    layer: int
    segment: Segment
    batch: int
    heads: int
    candidates: tuple[Candidate, ...]
    scores: Scores
    risk: np.ndarray  # [U, C]
    gate: float  # lambda
    routed: router.Routing
    certified: fallback.Certified
    certificate_mass: np.ndarray  # [U, certificate rows, C]
    entropy: np.ndarray  # [U]
    local_band: np.ndarray
    agreement: np.ndarray
    limit_us: float | None  # this segment's share of T_l
    planned_us: float  # probe and kernels as predicted
    dense_us: float  # dense attention as predicted
    probe_us: float  # measured, as are the next two
    index_us: float
    route_us: float
    probe: Probe
    indices: dict[Pattern, FamilyIndex]

    @property
    def choice(self) -> np.ndarray:
        """int64 [B, H]: the final candidate of each unit."""
        return self.certified.choice.reshape(self.batch, self.heads)

    @property
    def sparse(self) -> np.ndarray:
        """bool [U]: units that read less than everything."""
        return self.certified.choice != len(self.candidates) - 1


def decide(
    inputs: AttentionInputs,
    segment: Segment,
    layer: int,
    config: RouterConfig,
    gate: float,
    profile: LatencyProfile,
    limit_us: float | None,
    seed: int | None = None,
    predictor: PredictorTables | None = None,
) -> Decision:
    """Steps 1 to 5. limit_us: this segment's share of T_l, None without a limit. seed: the prompt's (config.seed).
    predictor: gives the predicted error e of every sparse candidate; dense has none.

    Errors: ConfigError where the limit is below the probe's own cost; NumericsError for NaN or Inf.
    """
    batch, heads = inputs.q.shape[:2]
    clock = _Clock(inputs.q.device)

    # 1. The shared probe.
    first_keys = inputs.first_keys()
    base = config.seed if seed is None else seed
    rows = draw_rows(segment, batch, heads, config, stable_seed(base, layer, segment.index), first_keys)
    probe = run_probe(inputs, segment, rows, config)
    probe_us = clock.lap()

    # 2. Candidate indices, coverage and uncertainty.
    candidates = library(segment)
    indices = build_indices(inputs, segment, probe, candidates)
    covered = coverage.cover(inputs, segment, probe, indices, candidates)
    described = descriptors.describe(probe, segment)
    index_us = clock.lap()

    # 3. Profiled latency of each candidate.
    def units(x: torch.Tensor) -> np.ndarray:
        return x.flatten(0, 1).double().cpu().numpy()

    kernel_us = profile.sparse_us(segment, units(covered.tiles), units(covered.columns))
    kernel_us[:, -1] = profile.dense_us(segment)
    planned_probe_us = profile.probe_us(segment, heads) * batch
    if limit_us is not None and limit_us <= planned_probe_us:
        raise ConfigError(
            f"the budget leaves {limit_us:.0f} us for segment {segment.index} of a layer, below the probe's "
            f"{planned_probe_us:.0f} us; raise the budget"
        )
    scores = Scores(
        mass=units(covered.group_mean(probe, ROUTING)),
        recent_mass=units(covered.group_mean(probe, RECENT)),
        disagreement=units(covered.disagreement(probe)),
        density=units(covered.density),
        kernel_us=kernel_us,
    )
    if predictor is not None:
        gate_mass = torch.minimum(covered.group_mean(probe, ROUTING), covered.group_mean(probe, RECENT))
        predicted = predictor(gate_mass, covered.disagreement(probe), described.entropy.unsqueeze(-1))
        predicted[..., -1] = 0.0
        scores = replace(scores, predicted_error=units(predicted))

    # 4. Eq. 6 under the layer's limit.
    kernel_limit = None if limit_us is None else limit_us - planned_probe_us
    routed = router.choose(scores, config, gate, kernel_limit)

    # 5. Expand or fall back where the certificate is below tau.
    certificate_mass = units(covered.row_mass[:, :, rows.slice_of(CERTIFICATE)])
    spent = float(kernel_us[np.arange(len(routed.choice)), routed.choice].sum())
    slack = None if kernel_limit is None else kernel_limit - spent
    certified = fallback.certify(scores, certificate_mass, routed.choice, config, gate, slack)
    final_us = float(kernel_us[np.arange(len(routed.choice)), certified.choice].sum())
    return Decision(
        layer=layer,
        segment=segment,
        batch=batch,
        heads=heads,
        candidates=candidates,
        scores=scores,
        risk=scores.risk(config.alpha, config.beta),
        gate=gate,
        routed=routed,
        certified=certified,
        certificate_mass=certificate_mass,
        entropy=units(described.entropy),
        local_band=units(described.local_band),
        agreement=units(described.agreement),
        limit_us=limit_us,
        planned_us=planned_probe_us + final_us,
        dense_us=float(kernel_us[:, -1].sum()),
        probe_us=probe_us,
        index_us=index_us,
        route_us=clock.lap(),
        probe=probe,
        indices=indices,
    )


def plan_of(decision: Decision, inputs: AttentionInputs) -> RowPlan:
    """Step 6, first half: the row plan of the decision; ``sparse_attention`` is the second."""
    return lower(
        decision.segment,
        decision.indices,
        decision.candidates,
        decision.choice,
        inputs.key_start,
        inputs.softcap,
        inputs.sinks,
    )


def stable_seed(*parts: int | str) -> int:
    """A 63-bit seed from its parts, the same on every machine."""
    digest = hashlib.sha256(":".join(map(str, parts)).encode()).digest()
    return int.from_bytes(digest[:8], "big") >> 1


class _Clock:
    """Lap times in microseconds; waits for the GPU so that a lap holds its own work."""

    def __init__(self, device: torch.device) -> None:
        self._device = device
        self._last = self._now()

    def _now(self) -> float:
        if self._device.type == "cuda":
            torch.cuda.synchronize(self._device)
        return time.perf_counter()

    def lap(self) -> float:
        now = self._now()
        elapsed, self._last = now - self._last, now
        return elapsed * 1e6
