"""Every rule serves a layer: valid plans with and without the extras, and attention through the router. CPU only."""

from __future__ import annotations

import dataclasses

import pytest
import torch

from routesparse.engine.certification.minference_heads import HeadBudget
from routesparse.engine.lab.rivals.flashprefill import FlashPrefill
from routesparse.engine.lab.rivals.flexprefill import FlexPrefill
from routesparse.engine.lab.rivals.global_router import GlobalRouter
from routesparse.engine.lab.rivals.minference import MInference
from routesparse.engine.lab.rivals.oracle import OracleFloor, OracleLargest, OracleTopP
from routesparse.engine.lab.rivals.pooled_top_k import PooledTopK
from routesparse.engine.lab.rivals.prism import Prism
from routesparse.engine.lab.rivals.random_blocks import RandomBlocks
from routesparse.engine.lab.rivals.rule import RuleRouter, View
from routesparse.engine.lab.rivals.static_a_shape import StaticAShape, Window
from routesparse.engine.lab.rivals.stem import Stem
from routesparse.engine.lab.rivals.trianglemix import TriangleMix
from routesparse.engine.lab.rivals.xattention import XAttention

RULES = {
    "flashprefill": FlashPrefill(),
    "flexprefill": FlexPrefill(least_tokens=128),
    "flexprefill-short": FlexPrefill(),
    "global_router": GlobalRouter(tau=0.5),
    "minference": MInference(default=HeadBudget("vertical_and_slash", 40, 60)),
    "minference-stream": MInference(default=HeadBudget("stream_llm", 40, 60)),
    "oracle_top_p": OracleTopP(0.8),
    "oracle_floor": OracleFloor(0.05),
    "oracle_largest": OracleLargest(0.2),
    "pooled_top_k": PooledTopK(3),
    "prism": Prism(0.5),
    "random_blocks": RandomBlocks(),
    "static_a_shape": StaticAShape(64, 100),
    "window": Window(100),
    "stem": Stem(least_blocks=2, edge_blocks=1),
    "trianglemix": TriangleMix(dense_layers=2),
    "xattention-8": XAttention(stride=8),
    "xattention-16": XAttention(stride=16),
}
every_rule = pytest.mark.parametrize("rule", RULES.values(), ids=RULES.keys())


@every_rule
@pytest.mark.parametrize("extras", [True, False], ids=["extras", "pure"])
def test_the_plan_is_valid(rule, extras, view) -> None:
    found, again = rule(view), rule(dataclasses.replace(view))
    if found is None:
        assert again is None
        return
    assert found.blocks.equal(again.blocks), "the same view gives the same blocks"
    blocks = view.segment.query_blocks, view.segment.key_blocks
    assert found.blocks.dtype == torch.bool and found.blocks.shape[2:] == blocks
    plan = view.plan(found, extras)
    plan.validate()
    forced = view.forced_and_causal[0]
    if extras:
        read = plan.to_mask()
        tail = view.segment.body_blocks * view.block_q
        assert read[0, :, tail:].sum() == view.heads * sum(range(tail + 1, view.tokens + 1))
        for row in range(0, view.tokens, 61):
            keys = forced[0, 0, row // view.block_q].repeat_interleave(view.block_k)[: row + 1]
            assert read[0, :, row, : row + 1][:, keys].all()


@every_rule
def test_the_router_attends_as_the_plan_says(rule, oracle) -> None:
    inputs = oracle.draw_inputs(2, n_q=389)
    router = RuleRouter(rule, extras=False, salt="prompt", counted=True)
    router.start()
    out = router.attend(inputs, layer=3)
    view = View(inputs, 3, "prompt")
    found = rule(view)
    mask = None if found is None else view.plan(found, extras=False).to_mask()
    torch.testing.assert_close(out.double(), oracle.attention(inputs, mask), rtol=1e-4, atol=1e-4)
    assert 0.0 < router.density() <= 1.0


def test_queries_and_keys_in_bfloat16_are_served(make_view) -> None:
    for name, rule in RULES.items():
        found = rule(make_view(300, 32, 16, dtype=torch.bfloat16))
        assert found is None or found.blocks.any(), name
