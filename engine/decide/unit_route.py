"""Steps 3 to 5 as one kernel, for the default setting: no latency limit, no error predictor, betting bound.

Every unit then decides on its own: its scores, the cheapest candidate with g >= lambda, its ladder and the ladder's
certificate. The twins are ``router_device.choose`` and ``fallback.certify`` (``layer.route_by_tensors``), which take
every setting; given the same scores, both come to the same choice and record.
"""

from __future__ import annotations

import math

import numpy as np
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import packed_layout
from routesparse.engine.device.constants import constant
from routesparse.engine.device.copies import Packed
from routesparse.engine.method.certificate import BET_CAP, BISECTIONS
from routesparse.engine.method.descriptors import Descriptors
from routesparse.engine.method.fallback import NEXT_BUDGET
from routesparse.engine.method.latency import LatencyProfile
from routesparse.engine.method.predictor import PredictorTables
from routesparse.engine.method.probe_rows import ProbeRows
from routesparse.engine.method.retained_mass import Coverage
from routesparse.engine.method.router_device import DENSE_SHARE
from routesparse.engine.method.segments import Segment
from routesparse.kernels import route_triton


def takes(config: RouterConfig, limit_us: float | None, predictor: PredictorTables | None) -> bool:
    """Whether the kernel knows this setting."""
    return (
        config.policy == "certified"
        and limit_us is None
        and predictor is None
        and config.beta == 0
        and config.bound == "betting"
        and config.max_tests <= route_triton.MOST_TESTS
    )


def route(
    segment: Segment,
    rows: ProbeRows,
    covered: Coverage,
    described: Descriptors,
    finite: torch.Tensor,
    config: RouterConfig,
    gate: float,
    profile: LatencyProfile,
    laps: int,
) -> tuple[torch.Tensor, Packed]:
    """The final candidates int64 [B, H], and what the record keeps, but for its ``laps`` lap times."""
    device = covered.row_mass.device
    batch, heads, _, width = covered.row_mass.shape
    layout = packed_layout(batch * heads, width, config.max_tests, config.certificate_rows, laps)
    size = sum(math.prod(shape) for shape, _ in layout.values())
    packed = Packed(torch.empty(size, dtype=torch.float64, device=device), layout)
    nothing = np.zeros(())
    settings = route_triton.Settings(
        fixed_us=float(profile.sparse_us(segment, nothing, nothing)),
        tile_us=profile.tile_us,
        column_us=profile.column_us,
        dense_us=profile.dense_us(segment),
        alpha=config.alpha,
        gate=gate,
        dense_share=DENSE_SHARE,
        next_budget=NEXT_BUDGET,
        tau=config.tau,
        target=math.log(1.0 / ((1.0 - config.confidence) / config.max_tests)),
        bet_cap=BET_CAP,
    )
    choice = route_triton.route_units(
        covered.row_mass,
        covered.tiles,
        covered.columns,
        covered.density,
        (described.entropy, described.local_band, described.agreement),
        finite,
        constant(np.array(settings.values()), device),
        packed.values,
        packed.places(),
        rows.sizes,
        tests=config.max_tests,
        fallback=config.fallback,
        bisections=BISECTIONS,
    )
    return choice, packed
