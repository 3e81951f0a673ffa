"""The global router against a plain reading: exact masses of each rule's plan on the sampled rows. CPU only."""

from __future__ import annotations

import pytest
import torch

from routesparse.engine.certification.minference_heads import HeadBudget
from routesparse.engine.lab.rivals.global_router import GlobalRouter
from routesparse.engine.lab.rivals.minference import MInference
from routesparse.engine.lab.rivals.pooled_top_k import PooledTopK
from routesparse.engine.lab.rivals.static_a_shape import StaticAShape
from routesparse.engine.seeds import stable_seed

GRID = (
    StaticAShape(16, 40),
    StaticAShape(16, 200),
    *(MInference(default=HeadBudget("vertical_and_slash", v, s)) for v, s in ((30, 60), (90, 150))),
    *(PooledTopK(blocks) for blocks in (4, 9, 20)),
    lambda view: None,
)


def masses(view, slow, extras: bool = True) -> list[tuple[float, float]]:
    """(mean mass on the sampled rows, density of the plan) of each rule but the last."""
    generator = torch.Generator().manual_seed(stable_seed("global router", view.salt, view.layer))
    rows = torch.randint(view.segment.body, (64,), generator=generator)
    attention = slow.attention(view)[:, rows]
    out = []
    for rule in GRID[:-1]:
        plan = view.plan(rule(view), extras)
        out.append((float((attention * plan.to_mask()[0, :, rows]).sum(-1).mean()), plan.density))
    return out


@pytest.mark.parametrize("tau", [0.3, 0.6, 0.8, 0.9])
def test_the_cheapest_rule_that_reaches_tau_serves_all_heads(make_view, slow, tau) -> None:
    view = make_view(517, 32, 16)
    found = masses(view, slow)
    assert min(found)[0] < 0.6 < max(found)[0], "else a router that takes the first one would pass"
    reaching = [(density, place) for place, (mass, density) in enumerate(found) if mass >= tau]
    found = GlobalRouter(tau, GRID)(view)
    assert (found is None) == (not reaching)
    if found is not None:
        assert found.blocks.equal(GRID[min(reaching)[1]](view).blocks)


def test_a_layer_that_no_rule_reaches_is_dense(make_view) -> None:
    assert GlobalRouter(1.1, GRID)(make_view()) is None
    assert GlobalRouter(0.1, GRID)(make_view(32, 32, 16)) is None
