"""Lowering a layer's choices to one row plan: tail, dense heads, padding, and what reaches the kernel. CPU only."""

from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.method.attend import head_density, lower
from routesparse.engine.method.records import Context
from routesparse.engine.method.segments import split
from routesparse.kernels.rules import LISTED_SHARE

INPUTS = {
    "ragged-n713": {"n_q": 713},
    "chunk-nq333-nk901": {"n_q": 333, "n_k": 901},
    "padded-b2-n613": {"n_q": 613, "batch": 2, "key_start": [0, 137]},
}


def lowered(oracle, inputs, choice=None):
    segment, _, _, candidates, indices = oracle.step_one_and_two(inputs)
    shape = inputs.q.shape[:2]
    choice = (
        np.arange(shape[0] * shape[1]).reshape(shape) * 3 % 16 if choice is None else np.full(shape, choice)
    )
    plan = lower(Context(inputs, segment, candidates), indices, choice)
    return segment, candidates, indices, choice, plan


@pytest.fixture(params=INPUTS.values(), ids=INPUTS.keys())
def inputs(request, oracle):
    return oracle.draw_inputs(1, **request.param)


def test_the_plan_keeps_the_kernels_contract_and_the_segments_place(oracle, inputs):
    segment, _, _, _, plan = lowered(oracle, inputs)
    plan.validate()
    assert (plan.n_q, plan.n_k) == (segment.rows, segment.keys)
    assert (plan.block_q, plan.block_k) == (segment.block_q, segment.block_k)


def test_the_tail_and_crowded_rows_are_dense_and_no_other_row_of_a_sparse_head(oracle, inputs):
    segment, candidates, indices, _, _ = lowered(oracle, inputs)
    body, crowded = slice(0, segment.body_blocks), 0
    for candidate in candidates[:-1]:
        *_, plan = lowered(oracle, inputs, candidate.index)
        alone = oracle.plan_of_candidate(inputs, segment, candidates, indices, candidate.index)
        wanted = alone.block_count[:, :, body] > LISTED_SHARE * segment.key_blocks
        assert torch.equal(plan.dense_rows[:, :, body], wanted)
        assert plan.dense_rows[:, :, segment.body_blocks :].all()
        crowded += int(wanted.sum())
    assert crowded


def test_a_dense_head_reads_everything_and_lists_nothing(oracle, inputs):
    segment, candidates, _, _, _ = lowered(oracle, inputs)
    *_, plan = lowered(oracle, inputs, len(candidates) - 1)
    assert plan.dense_rows.all()
    assert (plan.block_count == 0).all() and (plan.column_count == 0).all()
    visible = oracle.visible(inputs)[:, :, segment.first :]
    assert torch.equal(plan.to_mask(), visible.expand(plan.to_mask().shape))


def test_each_head_gets_the_mask_of_its_own_candidate(oracle, inputs):
    segment, candidates, indices, choice, plan = lowered(oracle, inputs)
    mask = plan.to_mask()
    for b, h in np.ndindex(choice.shape):
        alone = oracle.plan_of_candidate(inputs, segment, candidates, indices, int(choice[b, h])).to_mask()
        rows = torch.arange(segment.body)
        listed = rows[~plan.dense_rows[b, h, rows // segment.block_q]]
        assert len(listed) or choice[b, h] == len(candidates) - 1
        assert torch.equal(mask[b, h, listed], alone[b, h, listed])


def test_columns_go_to_the_heads_that_chose_vertical_slash_only(oracle, inputs):
    _, candidates, _, choice, plan = lowered(oracle, inputs)
    slash = torch.tensor([[candidates[c].pattern == "vertical_slash" for c in row] for row in choice])
    assert plan.column_count[slash].sum() > 0
    assert plan.column_count[~slash].sum() == 0


def test_softcap_and_sinks_reach_the_plan(oracle):
    inputs = oracle.draw_inputs(2, softcap=3.0, sinks=True)
    *_, plan = lowered(oracle, inputs)
    assert plan.softcap == 3.0 and torch.equal(plan.sinks, inputs.sinks)


def test_segment_plans_join_to_the_plan_of_the_chunk(oracle):
    from routesparse.kernels.interface import RowPlan

    config = replace(oracle.SMALL, segment_tokens=256)
    inputs = oracle.draw_inputs(3, n_q=600, n_k=650)
    plans = []
    for segment in split(600, 650, config):
        _, _, _, candidates, indices = oracle.step_one_and_two(inputs, config, segment)
        plans.append(lower(Context(inputs, segment, candidates), indices, np.full((1, 4), 5)))
    joined = RowPlan.concat(plans).validate()
    assert (joined.n_q, joined.n_k) == (600, 650)
    first = 0
    for plan in plans:
        part = joined.to_mask()[:, :, first : first + plan.n_q, : plan.n_k]
        assert torch.equal(part, plan.to_mask())
        first += plan.n_q


@pytest.mark.parametrize("kind", INPUTS.values(), ids=INPUTS.keys())
def test_the_density_from_counts_is_the_plans_exact_density(oracle, kind):
    inputs = oracle.draw_inputs(4, **kind)
    segment, _, _, candidates, indices = oracle.step_one_and_two(inputs)
    for place in range(len(candidates)):
        choice = np.full(inputs.q.shape[:2], place)
        choice[:, 0] = len(candidates) - 1
        plan = lower(Context(inputs, segment, candidates), indices, choice)
        torch.testing.assert_close(head_density(plan), plan.head_density(), atol=1e-12, rtol=0)
