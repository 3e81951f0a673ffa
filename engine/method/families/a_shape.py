"""A-shape: the sink block and a local window of KV blocks; closed form, the same for every head."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from routesparse.engine.method.records import Candidate, Context, Family, FamilyIndex, Look
from routesparse.engine.method.segments import Segment
from routesparse.kernels.rules import NEVER

NAME = "a_shape"
DENSITIES = (0.02, 0.05, 0.1, 0.2)


def budgets(segment: Segment) -> list[dict[str, int]]:
    """``blocks``: of the window, the diagonal's among them."""
    return [{"blocks": segment.blocks_for_density(density)} for density in DENSITIES]


def text(budget: Candidate) -> str:
    """The budget in words."""
    return f"sink {budget.block_k} + local {budget.blocks * budget.block_k} tokens"


def reads(context: Context, budget: Candidate, unit: tuple[int, int], i: int) -> range:
    """The last ``blocks`` KV blocks up to the diagonal's end."""
    last = int(context.segment.last_blocks()[i])
    return range(max(0, last - budget.blocks + 1), last + 1)


def build(context: Context, budgets: Sequence[Candidate]) -> FamilyIndex:
    """A map [B, 1, M, N] for all heads: how far a KV block is from the query block's last says its level."""
    from routesparse.engine.device.constants import constant
    from routesparse.kernels.level_maps import slash_levels

    geometry = context.geometry
    by_distance = np.full((len(geometry.first_keys), 1, geometry.key_blocks), NEVER, np.uint8)
    for budget in reversed(budgets):
        by_distance[..., : budget.blocks] = budget.level
    bands = constant(by_distance, context.inputs.q.device)
    return FamilyIndex(NAME, slash_levels(bands, geometry, from_last=True))


FAMILY = Family(
    name=NAME,
    look=Look("A-shape", "A", light="#8395ab", dark="#8e9db0", symbol="triangle-up", mark="▲"),
    budgets=budgets,
    text=text,
    build=build,
    reads=reads,
    stamp=(DENSITIES,),
)
