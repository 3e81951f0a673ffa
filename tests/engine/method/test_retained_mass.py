"""Coverage: a candidate's mass and cost are those of the plan that would run, counted on its mask. CPU only."""

import pytest
import torch

from routesparse.engine.method.records import BOUNDARY, RECENT, ROUTING, Context
from routesparse.engine.method.retained_mass import candidate_mass

INPUTS = {
    "ragged-n713": {"n_q": 713},
    "aligned-n640": {"n_q": 640},
    "chunk-nq333-nk901": {"n_q": 333, "n_k": 901},
    "padded-b2-n613": {"n_q": 613, "batch": 2, "key_start": [0, 137]},
    "padded-chunk-nq410-nk777": {"n_q": 410, "n_k": 777, "batch": 2, "key_start": [33, 400]},
    "softcap-n500": {"n_q": 500, "softcap": 3.0},
    "sinks-n500": {"n_q": 500, "sinks": True},
}


@pytest.fixture(params=INPUTS.values(), ids=INPUTS.keys())
def case(request, oracle):
    inputs = oracle.draw_inputs(1, **request.param)
    segment, rows, probe, candidates, indices = oracle.step_one_and_two(inputs)
    covered = candidate_mass(Context(inputs, segment, candidates, probe), indices)
    plans = [oracle.plan_of_candidate(inputs, segment, candidates, indices, c.index) for c in candidates]
    return inputs, segment, rows, candidates, covered, plans


def test_row_mass_is_the_softmax_kept_by_the_plans_mask_on_every_probe_row(oracle, case):
    inputs, segment, rows, candidates, covered, plans = case
    weights, sink = oracle.softmax(inputs)
    weights, sink = weights[:, :, segment.first :, : segment.keys], sink[:, :, segment.first :]
    for candidate, plan in zip(candidates, plans, strict=True):
        kept = (weights * plan.to_mask()).sum(-1) + sink
        found = covered.row_mass[..., candidate.index].double()
        torch.testing.assert_close(found, kept.gather(2, rows.rows), atol=3e-5, rtol=0, msg=str(candidate))


def test_tiles_and_columns_are_the_plans_lists_over_the_body(case):
    _, segment, _, candidates, covered, plans = case
    body = slice(0, segment.body_blocks)
    for candidate, plan in zip(candidates[:-1], plans[:-1], strict=True):
        tiles = plan.block_count[:, :, body].sum(-1).float()
        columns = plan.column_count[:, :, body].sum(-1).float()
        assert torch.equal(covered.tiles[..., candidate.index], tiles), candidate
        assert torch.equal(covered.columns[..., candidate.index], columns), candidate


def test_density_counts_columns_as_parts_of_the_real_keys_tiles_and_dense_is_one(case):
    inputs, segment, _, _, covered, _ = case
    assert (covered.density[..., -1] == 1.0).all()
    last = torch.from_numpy(segment.last_blocks()[: segment.body_blocks])
    sink = inputs.first_keys() // segment.block_k
    total = (last + 1 - sink.view(-1, 1)).clamp_min(0).sum(-1).view(-1, 1, 1).float()
    assert torch.equal(covered.tiles[..., -1:], total.expand(-1, inputs.q.shape[1], -1))
    sparse = (covered.tiles + covered.columns / segment.block_k) / total
    torch.testing.assert_close(covered.density, sparse.clamp(max=1.0))


def test_disagreement_is_the_standard_deviation_of_the_three_groups_means(oracle):
    inputs = oracle.draw_inputs(3)
    segment, rows, probe, candidates, indices = oracle.step_one_and_two(inputs)
    covered = candidate_mass(Context(inputs, segment, candidates, probe), indices)
    means = torch.stack(
        [covered.row_mass[:, :, rows.slice_of(kind)].mean(2) for kind in (RECENT, ROUTING, BOUNDARY)]
    )
    wanted = (means - means.mean(0)).square().mean(0).sqrt()
    torch.testing.assert_close(covered.disagreement(probe), wanted)
    assert (covered.disagreement(probe)[..., -1] == 0).all()
