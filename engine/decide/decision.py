"""What was decided for one layer and segment: on the device while the model runs, on the host afterwards.

``Pending`` holds tensors and the copies of them that are on their way; it is what a row plan is lowered from, and
nothing in it waits. ``Pending.read`` waits and gives the ``Decision`` that records, audits and pages read.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import cached_property, partial
from typing import TYPE_CHECKING

import numpy as np

from routesparse.engine.errors import NumericsError
from routesparse.engine.method.fallback import read_certified
from routesparse.engine.method.families import priced_candidate
from routesparse.engine.method.layer_fallback import read_climb
from routesparse.engine.method.router import Routing, Scores, priced_threshold

if TYPE_CHECKING:
    import torch

    from routesparse.engine.config import RouterConfig
    from routesparse.engine.decide.heatmap import Drawing, PendingHeatmaps
    from routesparse.engine.device.copies import Packed, Readout
    from routesparse.engine.method.fallback import Certified
    from routesparse.engine.method.records import Candidate, FamilyIndex, Probe
    from routesparse.engine.method.segments import Segment
    from routesparse.engine.rows import Pattern
    from routesparse.kernels.plan import RowPlan


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
    gate_threshold: np.ndarray  # lambda of each unit's candidates, [U, C]
    routed: Routing
    final: np.ndarray  # int64 [U], the candidates after step 5
    certify: Callable[[], Certified]
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
    probe: Probe | None  # None and {} once the plan is lowered and nothing audits it
    indices: dict[Pattern, FamilyIndex]

    @cached_property
    def certified(self) -> Certified:
        """What step 5 did and may claim. Found when somebody asks: bounds are searched for, and no prefill waits."""
        return self.certify()

    @property
    def choice(self) -> np.ndarray:
        """int64 [B, H]: the final candidate of each unit."""
        return self.final.reshape(self.batch, self.heads)

    @property
    def planned_kernel_us(self) -> float:
        """The final candidates' predicted time: ``planned_us`` without the probe's."""
        return float(self.scores.kernel_us[np.arange(len(self.final)), self.final].sum())

    @property
    def sparse(self) -> np.ndarray:
        """bool [U]: units that read less than everything."""
        return self.final != len(self.candidates) - 1


@dataclass(frozen=True)
class Pending:
    """A decision whose numbers are still on the device."""

    layer: int
    segment: Segment
    batch: int
    heads: int
    candidates: tuple[Candidate, ...]
    gate_threshold: float | None  # lambda of all units; None: each one's floor at the price sets them
    config: RouterConfig
    limit_us: float | None
    planned_probe_us: float
    choice: torch.Tensor  # int64 [B, H], final
    readout: Readout
    heatmaps: PendingHeatmaps
    plan: RowPlan | None
    density: torch.Tensor | None
    probe: Probe | None
    indices: dict[Pattern, FamilyIndex]

    def read(self) -> Decision:
        """Wait for the copies. Errors: NumericsError where the probe met NaN or Inf."""
        values = self.readout.numpy()
        if not values["finite"]:
            raise NumericsError("NaN or Inf in the attention scores")
        names = ("mass", "recent_mass", "disagreement", "density", "kernel_us")
        scores = Scores(
            **{name: values[name] for name in names}, predicted_error=values.get("predicted_error")
        )
        step5 = {
            name.removeprefix("step5_"): value for name, value in values.items() if name.startswith("step5_")
        }
        config = self.config
        certify: Callable[[], Certified] = (
            partial(read_climb, step5, values["certificate_mass"], config, self.batch)
            if config.policy == "priced"
            else partial(read_certified, step5, config.tau)
        )
        g = scores.gate_statistic
        threshold = (
            priced_threshold(g, priced_candidate(self.candidates))
            if self.gate_threshold is None
            else np.full(g.shape, self.gate_threshold)
        )
        units = np.arange(self.batch * self.heads)
        kernels_us = float(scores.kernel_us[units, step5["choice"]].sum())
        probe_us, index_us, route_us = values["laps_us"].tolist()
        return Decision(
            layer=self.layer,
            segment=self.segment,
            batch=self.batch,
            heads=self.heads,
            candidates=self.candidates,
            scores=scores,
            risk=values["risk"],
            gate_threshold=threshold,
            routed=Routing(values["routed_choice"], bool(values["limited"]), bool(values["over_budget"])),
            final=step5["choice"],
            certify=certify,
            certificate_mass=values["certificate_mass"],
            entropy=values["entropy"],
            local_band=values["local_band"],
            agreement=values["agreement"],
            limit_us=self.limit_us,
            planned_us=self.planned_probe_us + kernels_us,
            dense_us=float(scores.kernel_us[:, -1].sum()),
            probe_us=probe_us,
            index_us=index_us,
            route_us=route_us,
            probe=self.probe,
            indices=self.indices,
        )


@dataclass(frozen=True)
class Computed:
    """Steps 1 to 5 of one segment, as tensors."""

    candidates: tuple[Candidate, ...]
    choice: torch.Tensor  # int64 [B, H], final
    packed: Packed
    probe: Probe
    indices: dict[Pattern, FamilyIndex]
    drawing: Drawing
    plan: RowPlan | None  # lowered with the rest where that is fused, as is
    density: torch.Tensor | None  # float64 [B, H] of the plan
