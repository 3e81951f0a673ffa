"""Every index builder against a twin that loops over query blocks, KV blocks and offsets. CPU only."""

import itertools
from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.engine.method import families
from routesparse.engine.method.families._block_ranking import block_scores, ranked_row
from routesparse.engine.method.policy import LOCAL_BLOCKS
from routesparse.engine.method.probe import describe
from routesparse.engine.method.records import CERTIFICATE, RECENT, Context
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.method.segments import Segment, split
from routesparse.kernels.causal_blocks import forced_and_causal as fast_forced_and_causal
from routesparse.kernels.level_maps import NEVER
from routesparse.kernels.recent_marginals.naive import band_mass
from routesparse.kernels.rules import QUESTION_FACTOR

INPUTS = {
    "aligned-n640": {"n_q": 640},
    "ragged-n713": {"n_q": 713},
    "chunk-nq333-nk901": {"n_q": 333, "n_k": 901},  # position 568 = 35 * 16 + 8
    "padded-b2-n613": {"n_q": 613, "batch": 2, "key_start": [0, 137]},
    "padded-chunk-nq410-nk777": {"n_q": 410, "n_k": 777, "batch": 2, "key_start": [33, 400]},
}


@pytest.fixture(params=INPUTS.values(), ids=INPUTS.keys())
def inputs(request, oracle):
    return oracle.draw_inputs(1, **request.param)


def blocks_of_rows(segment, i):
    """KV blocks that query block i meets."""
    rows = range(i * segment.block_q, min((i + 1) * segment.block_q, segment.rows))
    return sorted({(segment.position + r) // segment.block_k for r in rows})


def forced_and_causal(inputs, segment):
    """The twin of causal_blocks.forced_and_causal, bool [B, M, N] each."""
    shape = (inputs.q.shape[0], segment.query_blocks, segment.key_blocks)
    forced, causal = np.zeros(shape, bool), np.zeros(shape, bool)
    for b, i, j in itertools.product(*map(range, shape)):
        sink = int(inputs.first_keys()[b]) // segment.block_k
        met = blocks_of_rows(segment, i)
        causal[b, i, j] = sink <= j <= met[-1]
        forced[b, i, j] = causal[b, i, j] and (j == sink or j >= met[0] - LOCAL_BLOCKS)
    return forced, causal


def levels_by_hand(context, forced, causal, family, heads):
    """uint8 [B, H, M, N]: the first budget of the family whose definition names the block."""
    batch, m, n = forced.shape
    budgets = context.budgets(family.name)
    levels = np.full((batch, heads, m, n), NEVER, np.uint8)
    for b, h, i in itertools.product(range(batch), range(heads), range(m)):
        told = [set(family.reads(context, budget, (b, h), i)) for budget in budgets]
        seen = set(np.flatnonzero(causal[b, i] & ~forced[b, i]).tolist())
        assert all(one & seen <= more for one, more in itertools.pairwise(told)), (
            "budgets of a family are nested"
        )
        for budget in reversed(budgets):
            levels[b, h, i, list(family.reads(context, budget, (b, h), i))] = budget.level
        levels[b, h, i, forced[b, i]] = 0
        levels[b, h, i, ~causal[b, i]] = NEVER
    return levels


def family(candidates, pattern):
    return [c for c in candidates if c.pattern == pattern]


def test_sink_and_diagonal_blocks_are_those_of_a_loop(oracle, inputs):
    segment = split(inputs.q.shape[2], inputs.k.shape[2], oracle.SMALL)[-1]
    forced, causal = fast_forced_and_causal(segment.geometry(inputs.first_keys()))
    wanted_forced, wanted_causal = forced_and_causal(inputs, segment)
    shape = (inputs.q.shape[0], 1, segment.query_blocks, segment.key_blocks)
    assert (forced.expand(shape)[:, 0].numpy() == wanted_forced).all()
    assert (causal.expand(shape)[:, 0].numpy() == wanted_causal).all()


@pytest.mark.parametrize("family", families.registered(), ids=lambda family: family.name)
def test_every_index_is_its_familys_definition(oracle, inputs, family):
    segment, _, probe, candidates, indices = oracle.step_one_and_two(inputs)
    forced, causal = forced_and_causal(inputs, segment)
    found = indices[family.name].levels.numpy()
    context = Context(inputs, segment, candidates, probe)
    wanted = levels_by_hand(context, forced, causal, family, heads=found.shape[1])
    assert (np.broadcast_to(found, wanted.shape) == wanted).all()
    assert len(np.unique(found)) > 2, "the budgets differ, so the comparison can fail"


@pytest.mark.parametrize("phase", [0, 1, 7, 15])
@pytest.mark.parametrize(
    ("block_q", "block_k"), [(16, 16), (32, 16), (64, 16)], ids=["16x16", "32x16", "64x16"]
)
def test_band_mass_equals_the_formula_counted_offset_by_offset(phase, block_q, block_k):
    """band(D) = sum over d of diagonal(d) * #{x : floor((phase + x - d) / block_k) = -D}."""
    segment = Segment(0, 0, 64 + phase, 150, 150, block_q, block_k)
    mass = torch.rand(1, 2, segment.keys, generator=torch.Generator().manual_seed(0), dtype=torch.float64)
    wanted = torch.zeros(1, 2, segment.key_blocks, dtype=torch.float64)
    for d, x in itertools.product(range(segment.keys), range(block_q)):
        distance = -((phase + x - d) // block_k)
        if 0 <= distance < segment.key_blocks:
            wanted[..., distance] += mass[..., d]
    torch.testing.assert_close(band_mass(mass, segment.phase, block_q, block_k), wanted)


def test_columns_are_the_best_of_the_recent_rows_in_nested_counts(oracle, inputs):
    _, _, probe, candidates, indices = oracle.step_one_and_two(inputs)
    index, budgets = indices["vertical_slash"], family(candidates, "vertical_slash")
    for b, h in itertools.product(*map(range, inputs.q.shape[:2])):
        mass = probe.column_mass[b, h]
        best = mass.sort(descending=True).values
        for level, budget in enumerate(budgets):
            kept = index.columns[b, h, index.ranked_columns.levels <= level]
            assert len(set(kept.tolist())) == len(kept) == budget.columns
            torch.testing.assert_close(mass[kept], best[: budget.columns])


def test_a_score_is_at_least_what_the_question_makes_of_it(oracle, inputs):
    """The largest share of a recent row, over QUESTION_FACTOR, against a loop over the rows' full softmax."""
    segment, rows, probe, candidates, _ = oracle.step_one_and_two(inputs)
    weights = oracle.block_sums(oracle.softmax(inputs)[0][:, :, segment.first :], segment.block_k)
    context = Context(inputs, segment, candidates, probe)
    scores, raised = block_scores(context).float(), 0
    for b, h in itertools.product(*map(range, inputs.q.shape[:2])):
        recent = rows.rows[b, h, rows.slice_of(RECENT)]
        asked = weights[b, h, recent].amax(0) / QUESTION_FACTOR
        for i in range(segment.query_blocks):
            row = ranked_row(context, (b, h), i)
            own = scores[b, h, i, row.free].double().exp()
            wanted = torch.maximum(own, asked[row.free]).log()
            torch.testing.assert_close(torch.from_numpy(row.score).double(), wanted, atol=1e-3, rtol=1e-3)
            raised += int((asked[row.free] > own).sum())
    assert raised


def test_block_sparse_never_exceeds_its_budget(oracle, inputs):
    segment, _, _, candidates, indices = oracle.step_one_and_two(inputs)
    forced, _ = forced_and_causal(inputs, segment)
    found = indices["block_sparse"]
    for budget in family(candidates, "block_sparse"):
        read = (found.levels <= budget.level).sum(-1)
        assert torch.equal(read.int(), found.row_counts[..., budget.level])
        assert (read <= torch.from_numpy(np.maximum(forced.sum(-1), budget.blocks)).unsqueeze(1)).all()


def test_the_floor_reads_what_holds_its_share_and_nothing_else(oracle, inputs):
    segment, _, probe, candidates, indices = oracle.step_one_and_two(inputs)
    context = Context(inputs, segment, candidates, probe)
    found = indices["floor"]
    for budget in family(candidates, "floor"):
        read = found.levels <= budget.level
        assert torch.equal(read.sum(-1).int(), found.row_counts[..., budget.level])
        for b, h, i in itertools.product(*map(range, read.shape[:3])):
            row = ranked_row(context, (b, h), i)
            held = torch.from_numpy(np.exp(row.score.astype(np.float64)))
            # A share within rounding of the floor may fall on either side.
            sure = (held / budget.share - 1).abs() > 1e-6
            assert torch.equal(read[b, h, i, row.free][sure], (held >= budget.share)[sure])


def test_a_heads_own_floor_multiplies_the_share_that_it_asks_for(oracle, inputs):
    segment, _, probe, candidates, indices = oracle.step_one_and_two(inputs)
    plain = Context(inputs, segment, candidates, probe)
    factors = torch.tensor([2.0, 1.0, 0.5, 3.0])[: inputs.q.shape[1]].expand(inputs.q.shape[0], -1)
    found = families.build_indices(replace(plain, head_floors=factors.log()))
    changed = 0
    for budget in family(candidates, "floor"):
        read = found["floor"].levels <= budget.level
        changed += int((read != (indices["floor"].levels <= budget.level))[:, factors[0] != 1].sum())
        for b, h, i in itertools.product(*map(range, read.shape[:3])):
            row = ranked_row(plain, (b, h), i)
            share = budget.share * float(factors[b, h])
            held = torch.from_numpy(np.exp(row.score.astype(np.float64)))
            sure = (held / share - 1).abs() > 0.02  # scores are float16
            assert torch.equal(read[b, h, i, row.free][sure], (held >= share)[sure])
    assert changed


def test_lowered_budgets_of_a_family_are_nested(oracle, inputs):
    segment, _, _, candidates, indices = oracle.step_one_and_two(inputs)
    for pattern in indices:
        masks = [
            oracle.plan_of_candidate(inputs, segment, candidates, indices, c.index).to_mask()
            for c in family(candidates, pattern)
        ]
        for small, large in itertools.pairwise(masks):
            assert not (small & ~large).any()


def test_every_candidate_reads_sink_diagonal_and_local_blocks_in_every_row(oracle, inputs):
    segment, _, _, candidates, indices = oracle.step_one_and_two(inputs)
    visible = oracle.visible(inputs)[:, :, segment.first :]
    forced, _ = forced_and_causal(inputs, segment)
    rows = torch.arange(segment.rows) // segment.block_q
    needed = torch.from_numpy(forced).repeat_interleave(segment.block_k, 2)[:, rows, : segment.keys]
    for candidate in candidates:
        mask = oracle.plan_of_candidate(inputs, segment, candidates, indices, candidate.index).to_mask()
        assert not (needed.unsqueeze(1) & visible & ~mask).any()


# The certificate rows are nobody's but the certificate's.


def poisoned(probe):
    """The probe with nonsense in every certificate row."""
    part = probe.rows.slice_of(CERTIFICATE)
    names = ("block_mass", "lse", "entropy", "local", "spread")
    changed = {name: getattr(probe, name).clone() for name in names}
    for values in changed.values():
        values[:, :, part] = torch.nan
    return replace(probe, **changed)


def test_builders_scores_and_descriptors_ignore_what_the_certificate_rows_saw(oracle, inputs, monkeypatch):
    from routesparse.engine.method.families import build_indices

    segment, _, probe, candidates, indices = oracle.step_one_and_two(inputs)
    bad = poisoned(probe)
    rebuilt = build_indices(Context(inputs, segment, candidates, bad))
    for pattern, index in indices.items():
        assert torch.equal(rebuilt[pattern].levels, index.levels)
    assert torch.equal(rebuilt["vertical_slash"].columns, indices["vertical_slash"].columns)
    good_cover = candidate_mass(Context(inputs, segment, candidates, probe), indices)
    bad_cover = candidate_mass(Context(inputs, segment, candidates, bad), indices)
    for kind in (0, 1, 3):
        assert torch.equal(bad_cover.group_mean(bad, kind), good_cover.group_mean(probe, kind))
    assert torch.equal(bad_cover.disagreement(bad), good_cover.disagreement(probe))
    good, other = describe(probe), describe(bad)
    for name in ("entropy", "local_band", "agreement"):
        assert torch.equal(getattr(other, name), getattr(good, name))
