"""One routed layer call after another: outputs against float64, chunks, padding, causality. CPU only."""

from dataclasses import replace
from functools import partial

import numpy as np
import pytest
import torch

from routesparse.engine.method import families
from routesparse.engine.method.attend import dense_attention, lower
from routesparse.engine.method.records import Context
from routesparse.engine.runtime.session import RoutingSession
from routesparse.kernels.interface import sparse_attention

ATOL = 2e-5


def decisions(routed):
    return list(routed.trace.prompts[-1].decisions()) if routed.trace.prompts else []


def chunk(inputs, first, end):
    return replace(inputs, q=inputs.q[:, :, first:end], k=inputs.k[:, :, :end], v=inputs.v[:, :, :end])


INPUTS = {
    "plain-n713": {"n_q": 713},
    "two-segments-n640": {"n_q": 640},
    "padded-b2-n613": {"n_q": 613, "batch": 2, "key_start": [0, 137]},
    "softcap-n512": {"n_q": 512, "softcap": 3.0},
    "sinks-n512": {"n_q": 512, "sinks": True},
}


@pytest.mark.parametrize("kind", INPUTS.values(), ids=INPUTS.keys())
def test_the_output_is_attention_over_exactly_the_planned_keys(oracle, start, config, kind):
    inputs = oracle.draw_inputs(1, **kind)
    routed, call = start(replace(config, segment_tokens=320))
    out, mask = call(inputs)
    assert any(d.sparse.any() for d in decisions(routed))
    torch.testing.assert_close(out.double(), oracle.attention(inputs, mask), atol=ATOL, rtol=0)


@pytest.mark.parametrize(
    "kind", [INPUTS["two-segments-n640"], INPUTS["padded-b2-n613"]], ids=["plain", "padded"]
)
@pytest.mark.parametrize("pattern", families.names())
def test_a_candidate_with_the_full_budget_is_dense_attention(oracle, start, config, kind, pattern):
    full = {"blocks": 10_000, "columns": 16, "share": 1e-9}

    def budgets(family, segment):
        cheapest = family.budgets(segment)[0]
        return [cheapest, full] if family.name == pattern else [cheapest]

    inputs = oracle.draw_inputs(2, **kind)
    settings = replace(config, policy="certified", gate_threshold=0.9999, tail_tokens=0)
    routed, call = start(settings)
    with families.using(*(replace(f, budgets=partial(budgets, f)) for f in families.registered())):
        out, _ = call(inputs)
    chosen = {d.candidates[c].pattern for d in decisions(routed) for c in d.routed.choice}
    assert chosen == {pattern}
    torch.testing.assert_close(out.double(), oracle.attention(inputs), atol=ATOL, rtol=0)


def test_every_head_may_choose_another_family_and_budget(oracle, config):
    """Lowering mixes families whose grids have different lengths (short prompts drop equal budgets)."""
    for tokens in (215, 250, 640):
        inputs = oracle.draw_inputs(3, n_q=tokens)
        segment, _, _, candidates, indices = oracle.step_one_and_two(inputs)
        for shift in range(len(candidates)):
            choice = np.array([[(shift + 3 * h) % len(candidates) for h in range(4)]])
            plan = lower(Context(inputs, segment, candidates), indices, choice).validate()
            for h in range(4):
                alone = oracle.plan_of_candidate(inputs, segment, candidates, indices, int(choice[0, h]))
                # The tail is dense, and so are rows that would list most of their blocks.
                listed = (~plan.dense_rows | alone.dense_rows)[0, h].repeat_interleave(plan.block_q)[:tokens]
                assert torch.equal(plan.to_mask()[0, h, listed], alone.to_mask()[0, h, listed])
                assert listed[: segment.body].float().mean() > 0.3


@pytest.mark.parametrize("launch", ["grouped", "per_head"])
def test_launches_differ_in_time_only(oracle, start, config, launch):
    inputs = oracle.draw_inputs(4, batch=2, key_start=[0, 65], sinks=True)
    fused, _ = start(config)[1](inputs)
    other, _ = start(replace(config, launch=launch))[1](inputs)
    torch.testing.assert_close(other, fused, atol=1e-6, rtol=0)


# Causality.


def test_a_future_token_changes_no_output_of_an_earlier_segment(oracle, start, config):
    settings = replace(config, segment_tokens=256)
    inputs = oracle.draw_inputs(5, n_q=512)
    before, _ = start(settings)[1](inputs)
    for place in (256, 300, 511):
        changed = replace(inputs, q=inputs.q.clone(), k=inputs.k.clone(), v=inputs.v.clone())
        for tensor in (changed.q, changed.k, changed.v):
            tensor[:, :, place] *= -7.0
        after, _ = start(settings)[1](changed)
        assert torch.equal(after[:, :, :256], before[:, :, :256])
        assert not torch.equal(after[:, :, place:], before[:, :, place:])


def test_with_the_plan_fixed_a_token_changes_no_output_before_it(oracle, config):
    inputs = oracle.draw_inputs(6, n_q=400)
    segment, _, _, candidates, indices = oracle.step_one_and_two(inputs)
    for place in range(len(candidates) - 1):
        plan = oracle.plan_of_candidate(inputs, segment, candidates, indices, place)
        before, _ = sparse_attention(inputs.q, inputs.k, inputs.v, plan, inputs.scale)
        token = 37 + 16 * (place % 18)
        k, v = inputs.k.clone(), inputs.v.clone()
        k[:, :, token] += 50.0
        v[:, :, token] = 1e4
        after, _ = sparse_attention(inputs.q, k, v, plan, inputs.scale)
        torch.testing.assert_close(after[:, :, :token], before[:, :, :token], atol=1e-6, rtol=0)
        assert (after[:, :, token] - before[:, :, token]).abs().max() > 1


# Chunks, decoding, prompts.


def test_chunked_prefill_routes_each_chunk_and_continues_the_segments(oracle, start, config):
    inputs = oracle.draw_inputs(7, n_q=900)
    routed, call = start(replace(config, segment_tokens=256))
    outs = []
    for first, end in ((0, 300), (300, 580), (580, 900)):
        part = chunk(inputs, first, end)
        out, mask = call(part)
        torch.testing.assert_close(out.double(), oracle.attention(part, mask), atol=ATOL, rtol=0)
        outs.append(out)
    assert [d.segment.index for d in decisions(routed)] == [0, 1, 2]
    assert [d.segment.position for d in decisions(routed)] == [0, 300, 580]
    assert len(routed.trace.prompts) == 1 and routed.trace.prompts[0].tokens == 900
    assert torch.cat(outs, 2).shape == inputs.q.shape


def test_decoding_is_dense_and_leaves_no_decision(oracle, start):
    inputs = oracle.draw_inputs(9, n_q=701)
    routed, call = start()
    call(chunk(inputs, 0, 700))
    seen = len(decisions(routed))
    out, mask = call(chunk(inputs, 700, 701))
    assert mask is None and len(decisions(routed)) == seen
    wanted = oracle.attention(chunk(inputs, 700, 701))
    torch.testing.assert_close(out.double(), wanted, atol=ATOL, rtol=0)


def test_a_sliding_window_layer_is_dense_within_its_window(oracle, start):
    inputs = oracle.draw_inputs(2, n_q=500)
    routed, call = start()
    out, mask = call(inputs, window=100)
    rows = torch.arange(500)
    near = rows.view(-1, 1) - rows < 100
    assert mask is None and not decisions(routed)
    torch.testing.assert_close(out.double(), oracle.attention(inputs, near), atol=ATOL, rtol=0)


@pytest.mark.parametrize("kind", INPUTS.values(), ids=INPUTS.keys())
def test_below_break_even_dense_runs_untouched(oracle, start, config, kind):
    inputs = oracle.draw_inputs(3, **kind)
    routed, call = start(replace(config, break_even_tokens=inputs.k.shape[2] + 1))
    out, _ = call(inputs)
    assert torch.equal(out, dense_attention(inputs, None)) and not decisions(routed)
    torch.testing.assert_close(out.double(), oracle.attention(inputs), atol=ATOL, rtol=0)


@pytest.mark.parametrize(("first", "is_routed"), [(0, True), (300, True), (420, False)])
def test_a_chunk_below_the_work_of_a_break_even_prompt_is_dense(oracle, start, config, first, is_routed):
    """However many keys lie before it, whose probe it would pay."""
    inputs = oracle.draw_inputs(6, n_q=700)
    routed, _ = start(replace(config, break_even_tokens=600, tail_tokens=0))
    assert routed.routes(chunk(inputs, first, 700)) == is_routed


def test_break_even_follows_the_profile_where_no_length_is_given(oracle, config):
    settings = replace(config, break_even_tokens=None)
    inputs = oracle.draw_inputs(3, n_q=640)
    for probe_us, routes in ((1.0, True), (1e9, False)):
        routed = RoutingSession(settings, profile=replace(oracle.PROFILE, probe_base_us=probe_us))
        routed.attend(inputs, layer=0)
        assert bool(decisions(routed)) is routes


# Padding.
