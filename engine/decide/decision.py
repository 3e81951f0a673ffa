"""What was decided for one layer and segment: on the device while the model runs, on the host afterwards.

``Pending`` holds tensors and the copies of them that are on their way; a row plan is lowered from it, and nothing in it
waits. ``Pending.read`` waits and gives the ``Decision`` that records, audits and pages read. Between them the numbers
travel in one tensor of float64, so that they leave a GPU in one copy: ``RECORD`` lists them, under the names that they
have from the kernel on.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, fields
from functools import cached_property, partial
from typing import Any, TypeVar

import numpy as np
import torch

from routesparse.engine.config import Policy, RouterConfig
from routesparse.engine.decide.heatmap import Pictures
from routesparse.engine.device.copies import Layout, Packed, Readout
from routesparse.engine.errors import NumericsError
from routesparse.engine.method.fallback import Certified, Escalated, read_escalated
from routesparse.engine.method.families import priced_candidate
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.layer_fallback import Climb, read_climb
from routesparse.engine.method.predictor import PredictorTables
from routesparse.engine.method.records import Candidate, FamilyIndex, Probe
from routesparse.engine.method.router import Routing, Scores, priced_threshold
from routesparse.engine.method.segments import Segment
from routesparse.engine.rows import Pattern
from routesparse.kernels.plan import RowPlan

T = TypeVar("T")

# Axes and type of everything that is recorded of a decision, in the kernels' order: U units of B prompts, C candidates,
# S tests, R certificate rows, L laps. A decision has the fields of ``Escalated`` or of ``Climb``, by its policy.
RECORD: dict[str, tuple[str, type]] = {
    "mass": ("UC", np.float64),
    "recent_mass": ("UC", np.float64),
    "disagreement": ("UC", np.float64),
    "density": ("UC", np.float64),
    "kernel_us": ("UC", np.float64),
    "predicted_error": ("UC", np.float64),  # where a predictor is given
    "risk": ("UC", np.float64),
    "routed_choice": ("U", np.int64),
    "limited": ("", np.bool_),
    "over_budget": ("", np.bool_),
    "choice": ("U", np.int64),
    # Policy "certified" and those under a limit (``Escalated``).
    "kind": ("U", np.int64),
    "unmet": ("U", np.bool_),
    "lower_mass": ("U", np.float64),
    # All policies.
    "ladder": ("US", np.int64),
    "bounds": ("US", np.float64),
    "tested": ("US", np.bool_),
    # Policy "priced" (``Climb``).
    "state": ("U", np.int64),
    "head_passed": ("US", np.bool_),
    "layer_passed": ("BS", np.bool_),
    # All policies.
    "certificate_mass": ("URC", np.float64),
    "entropy": ("U", np.float64),
    "local_band": ("U", np.float64),
    "agreement": ("U", np.float64),
    "finite": ("", np.bool_),
    "laps_us": ("L", np.float64),
}


def record_layout(policy: Policy, **sizes: int) -> Layout:
    """The part of RECORD that a policy fills without a predictor. sizes: of the axes, by their letters."""
    own, other = (Climb, Escalated) if policy == "priced" else (Escalated, Climb)
    absent = {field.name for field in fields(other)} - {field.name for field in fields(own)}
    return {
        name: (tuple(sizes[axis] for axis in axes), np.dtype(kind))
        for name, (axes, kind) in RECORD.items()
        if name not in absent | {"predicted_error"}
    }


def record_of(values: Mapping[str, torch.Tensor | None]) -> Packed:
    """The values of a decision, those that it has, in one tensor."""
    found = {name: x for name in RECORD if (x := values.get(name)) is not None}
    layout = {name: (tuple(x.shape), np.dtype(RECORD[name][1])) for name, x in found.items()}
    return Packed(torch.cat([x.flatten().double() for x in found.values()]), layout)


@dataclass(frozen=True)
class LayerSettings:
    """The same for every layer of one prompt on one device."""

    config: RouterConfig
    gate_threshold: float  # lambda (paper section 3.3)
    profile: LatencyProfile
    predictor: PredictorTables | None = None  # gives e, the predicted error of every sparse candidate
    prompt_seed: int | None = None  # places this prompt's random rows; None: config.seed
    # Under tensor parallelism: the model's first head here and how many it has in all. Rows are drawn for all of them,
    # so that a head's do not depend on who serves it.
    first_head: int = 0
    all_heads: int | None = None

    @property
    def seed(self) -> int:
        """The seed that places the random rows."""
        return self.config.seed if self.prompt_seed is None else self.prompt_seed


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
    def sparse(self) -> np.ndarray:
        """bool [U]: units that read less than everything."""
        return self.final != len(self.candidates) - 1


@dataclass(frozen=True)
class Pending:
    """A decision whose numbers are still on the device."""

    layer: int
    segment: Segment
    settings: LayerSettings
    limit_us: float | None
    planned_probe_us: float
    candidates: tuple[Candidate, ...]
    choice: torch.Tensor  # int64 [B, H], final
    readout: Readout
    heatmaps: Pictures
    plan: RowPlan | None
    density: torch.Tensor | None
    probe: Probe | None
    indices: dict[Pattern, FamilyIndex]

    def read(self) -> Decision:
        """Wait for the copies. Errors: NumericsError where the probe met NaN or Inf."""
        values = self.readout.numpy()
        if not values["finite"]:
            raise NumericsError("NaN or Inf in the attention scores")
        config, (batch, heads) = self.settings.config, self.choice.shape
        scores = _filled(Scores, values)
        g = scores.gate_statistic
        certify: Callable[[], Certified]
        if config.policy == "priced":
            threshold = priced_threshold(g, priced_candidate(self.candidates))
            certify = partial(read_climb, _filled(Climb, values), values["certificate_mass"], config, batch)
        else:
            threshold = np.full(g.shape, self.settings.gate_threshold)
            certify = partial(read_escalated, _filled(Escalated, values), config.tau)
        kernels_us = float(scores.kernel_us[np.arange(batch * heads), values["choice"]].sum())
        found = {
            **vars(self),
            **values,
            "batch": batch,
            "heads": heads,
            "scores": scores,
            "gate_threshold": threshold,
            "routed": Routing(values["routed_choice"], bool(values["limited"]), bool(values["over_budget"])),
            "final": values["choice"],
            "certify": certify,
            "planned_us": self.planned_probe_us + kernels_us,
            "dense_us": float(scores.kernel_us[:, -1].sum()),
        }
        laps = dict(zip(("probe_us", "index_us", "route_us"), values["laps_us"].tolist(), strict=True))
        return _filled(Decision, found | laps)


def _filled(kind: type[T], values: Mapping[str, Any]) -> T:
    """One of the records whose fields are named as the values are."""
    named: Any = kind
    found: T = named(**{f.name: values[f.name] for f in fields(named) if f.name in values})
    return found


@dataclass(frozen=True)
class Computed:
    """Steps 1 to 5 and the row plan of one segment, as tensors: what a graph replays."""

    candidates: tuple[Candidate, ...]
    choice: torch.Tensor  # int64 [B, H], final
    packed: Packed
    probe: Probe
    indices: dict[Pattern, FamilyIndex]
    pictures: Pictures
    plan: RowPlan
    density: torch.Tensor  # float64 [B, H] of the plan
