"""The shared probe against a materialised float64 softmax: block mass, marginals, eq. 3, and which rows are drawn.

CPU only; heads are grouped (4 query, 2 KV).
"""

from dataclasses import replace

import pytest
import torch

from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.layer import decide
from routesparse.engine.errors import NumericsError
from routesparse.engine.method import probe as probe_module
from routesparse.engine.method.probe import draw_rows, run_probe
from routesparse.engine.method.records import BOUNDARY, CERTIFICATE, RECENT, ROUTING, Context
from routesparse.engine.method.segments import split
from routesparse.kernels.block_lse import naive as block_lse
from routesparse.kernels.recent_marginals import naive as recent_marginals
from routesparse.kernels.recent_marginals.naive import band_mass
from routesparse.kernels.retained_mass import ProbedRows
from routesparse.kernels.retained_mass.naive import column_mass

INPUTS = {
    "plain-n700": {"n_q": 700},
    "aligned-n640": {"n_q": 640},
    "chunk-nq333-nk901": {"n_q": 333, "n_k": 901},
    "padded-b2-n613": {"n_q": 613, "batch": 2, "key_start": [0, 137]},
    "softcap-n500": {"n_q": 500, "softcap": 3.0},
    "sinks-n500": {"n_q": 500, "sinks": True},
    "padded-chunk-sinks": {"n_q": 410, "n_k": 777, "batch": 2, "key_start": [33, 0], "sinks": True},
}
ATOL = 2e-5


@pytest.fixture(params=INPUTS.values(), ids=INPUTS.keys())
def inputs(request, oracle):
    return oracle.draw_inputs(1, **request.param)


@pytest.fixture
def small_chunks(monkeypatch):
    """Many chunks of keys, so that their seams are met."""
    monkeypatch.setattr(block_lse, "KEY_CHUNK", 96)
    monkeypatch.setattr(recent_marginals, "KEY_CHUNK", 112)


def probed(oracle, inputs, config=None, segment=None):
    segment, rows, probe, *_ = oracle.step_one_and_two(inputs, config or oracle.SMALL, segment)
    weights, sink = oracle.softmax(inputs)
    start = segment.first
    return segment, rows, probe, weights[:, :, start:, : segment.keys], sink[:, :, start:]


def test_exact_block_mass_equals_the_softmax_summed_over_blocks(oracle, inputs, small_chunks):
    segment, rows, probe, weights, _ = probed(oracle, inputs)
    wanted = oracle.block_sums(oracle.at_rows(weights, rows.rows), segment.block_k)
    torch.testing.assert_close(probe.block_mass.double(), wanted, atol=ATOL, rtol=0)


def test_the_sink_takes_what_the_blocks_leave(oracle, inputs):
    _, rows, probe, _, sink = probed(oracle, inputs)
    wanted = sink.gather(2, rows.rows)
    torch.testing.assert_close(probe.sink_mass.double(), wanted, atol=ATOL, rtol=0)
    torch.testing.assert_close(
        (probe.block_mass.sum(-1) + probe.sink_mass), torch.ones_like(probe.lse), atol=ATOL, rtol=0
    )


def test_column_marginals_are_the_recent_rows_softmax_beyond_the_local_offsets(oracle, inputs, small_chunks):
    segment, rows, probe, weights, _ = probed(oracle, inputs)
    recent = rows.rows[0, 0, rows.slice_of(RECENT)].tolist()
    wanted = torch.zeros_like(probe.column_mass, dtype=torch.float64)
    for r in recent:
        far = segment.position + r - probe_module.LOCAL_OFFSETS
        wanted[..., : max(0, far + 1)] += weights[:, :, r, : max(0, far + 1)]
    torch.testing.assert_close(probe.column_mass.double(), wanted, atol=ATOL * len(recent), rtol=0)


def test_band_marginals_are_the_recent_rows_softmax_by_offset(oracle, inputs, small_chunks):
    segment, rows, probe, weights, _ = probed(oracle, inputs)
    recent = rows.rows[0, 0, rows.slice_of(RECENT)].tolist()
    diagonals = torch.zeros_like(probe.column_mass, dtype=torch.float64)
    for r in recent:
        position = segment.position + r
        diagonals[:, :, : position + 1] += weights[:, :, r, : position + 1].flip(-1)
    atol = ATOL * len(recent) * segment.block_q
    torch.testing.assert_close(
        probe.band_mass.double(),
        band_mass(diagonals, segment.phase, segment.block_q, segment.block_k),
        atol=atol,
        rtol=0,
    )


def test_a_middle_segment_is_probed_on_its_own_rows_and_keys(oracle):
    config = replace(oracle.SMALL, segment_tokens=256)
    inputs = oracle.draw_inputs(2, n_q=700, n_k=810)
    middle = split(700, 810, config)[1]
    segment, rows, probe, weights, _ = probed(oracle, inputs, config, middle)
    assert (segment.position, segment.keys) == (110 + 256, 110 + 512)
    wanted = oracle.block_sums(oracle.at_rows(weights, rows.rows), segment.block_k)
    torch.testing.assert_close(probe.block_mass.double(), wanted, atol=ATOL, rtol=0)


def test_bfloat16_inputs_are_scored_in_float32_up_to_their_own_rounding(oracle):
    inputs = oracle.draw_inputs(3, dtype=torch.bfloat16)
    segment, rows, probe, weights, _ = probed(oracle, inputs)
    wanted = oracle.block_sums(oracle.at_rows(weights, rows.rows), segment.block_k)
    # A bf16 product rounds each logit by up to 2^-9 of its size.
    torch.testing.assert_close(probe.block_mass.double(), wanted, atol=0.02, rtol=0)


@pytest.mark.parametrize("shape", ["plain-n700", "chunk-nq333-nk901", "padded-b2-n613", "sinks-n500"])
def test_pooled_block_mass_equals_equation_three_by_hand(oracle, shape):
    """S = q . mean(keys of the block); a block counts with as many keys as the row sees in it."""
    inputs = oracle.draw_inputs(4, **INPUTS[shape])
    config = replace(oracle.SMALL, probe="pooled")
    segment, rows, probe, *_ = oracle.step_one_and_two(inputs, config)
    # Every key becomes the mean of its block's real keys; the softmax is then the ordinary one.
    k = inputs.k[:, :, : segment.keys].double()
    block = torch.arange(segment.keys) // segment.block_k
    means = torch.zeros_like(k)
    for b, first in enumerate(inputs.first_keys().tolist()):
        for j in range(segment.key_blocks):
            real = (block == j) & (torch.arange(segment.keys) >= first)
            if real.any():
                means[b, :, block == j] = k[b, :, real].mean(1, keepdim=True)
    weights, _ = oracle.softmax(replace(inputs, q=inputs.q.double(), k=means))
    wanted = oracle.block_sums(oracle.at_rows(weights, rows.rows), segment.block_k)
    for kind in (ROUTING, BOUNDARY):
        part = rows.slice_of(kind)
        torch.testing.assert_close(
            probe.block_mass[:, :, part].double(), wanted[:, :, part], atol=ATOL, rtol=0
        )


def test_the_pooled_probe_keeps_recent_and_certificate_rows_exact(oracle):
    inputs = oracle.draw_inputs(5)
    exact = oracle.step_one_and_two(inputs)[2]
    pooled = oracle.step_one_and_two(inputs, replace(oracle.SMALL, probe="pooled"))[2]
    for kind in (RECENT, CERTIFICATE):
        part = exact.rows.slice_of(kind)
        torch.testing.assert_close(pooled.block_mass[:, :, part], exact.block_mass[:, :, part])
    assert torch.equal(pooled.column_mass, exact.column_mass)


# The rows.


def draw(config, *, tokens=2_000, seed=7, batch=1, heads=6, first=None, chunk=None):
    segment = split(chunk or tokens, tokens, config)[-1]
    first = torch.zeros(batch, dtype=torch.int64) if first is None else torch.tensor(first)
    return segment, draw_rows(segment, batch, heads, config, seed, first)


def test_recent_rows_are_a_census_of_the_segments_end(oracle):
    segment, rows = draw(oracle.SMALL)
    recent = rows.rows[..., rows.slice_of(RECENT)]
    assert (recent == torch.arange(segment.rows - 24, segment.rows)).all()


@pytest.mark.parametrize("kind", [ROUTING, CERTIFICATE, BOUNDARY], ids=["routing", "certificate", "boundary"])
@pytest.mark.parametrize("first", [[0, 0], [0, 611]], ids=["unpadded", "padded"])
def test_scored_rows_lie_in_the_body_after_the_padding(oracle, kind, first):
    segment, rows = draw(oracle.SMALL, batch=2, first=first)
    chosen = rows.rows[..., rows.slice_of(kind)]
    assert (chosen < segment.body).all()
    assert (chosen >= torch.tensor(first).view(2, 1, 1)).all()


def test_there_is_one_routing_row_in_every_equal_stratum_of_the_body(oracle):
    segment, rows = draw(oracle.SMALL)
    strata = rows.rows[..., rows.slice_of(ROUTING)].double() * 16 / segment.body
    assert ((strata - torch.arange(16)) > -0.02).all() and ((strata - torch.arange(16)) < 1).all()


def test_rows_are_redrawn_for_every_head(oracle):
    rows = draw(oracle.SMALL)[1]
    for kind in (ROUTING, CERTIFICATE):
        drawn = {tuple(r.tolist()) for r in rows.rows[0, :, rows.slice_of(kind)]}
        assert len(drawn) == 6


@pytest.mark.parametrize("kind", [ROUTING, CERTIFICATE], ids=["routing", "certificate"])
def test_rows_stand_at_every_offset_inside_a_block(kind):
    """Aligned rows alias: omitted mass was .155 at offset 0 and .058 at offset 63."""
    config = RouterConfig()
    segment = split(16_384, 16_384, config)[-1]
    rows = draw_rows(segment, 1, 64, config, 3, torch.zeros(1, dtype=torch.int64))
    offsets = rows.rows[..., rows.slice_of(kind)].flatten() % 64
    counts = torch.bincount(offsets, minlength=64).double()
    expected = len(offsets) / 64
    # Chi-square with 63 degrees of freedom: 120 has probability 2e-5 (fixed seed: no flicker).
    assert float(((counts - expected) ** 2 / expected).sum()) < 120


def test_certificate_rows_are_uniform_over_the_body(oracle):
    config = RouterConfig()
    segment = split(16_384, 16_384, config)[-1]
    rows = draw_rows(segment, 1, 128, config, 5, torch.zeros(1, dtype=torch.int64))
    drawn = rows.rows[..., rows.slice_of(CERTIFICATE)].flatten()
    counts = torch.bincount(drawn * 64 // segment.body, minlength=64).double()
    expected = len(drawn) / 64
    assert float(((counts - expected) ** 2 / expected).sum()) < 120


@pytest.mark.parametrize("value", [float("nan"), float("inf")], ids=["nan", "inf"])
@pytest.mark.parametrize("name", ["q", "k"])
@pytest.mark.parametrize("mode", ["exact", "pooled"])
def test_nan_or_inf_in_queries_or_keys_is_refused(oracle, mode, name, value):
    inputs = oracle.draw_inputs(6)
    getattr(inputs, name)[0, 0, 3 if name == "k" else -1] = value
    segment = split(700, 700, oracle.SMALL)[-1]
    rows = draw_rows(segment, 1, 4, oracle.SMALL, 0, inputs.first_keys())
    config = replace(oracle.SMALL, probe=mode)
    assert not run_probe(Context(inputs, segment, ()), rows, config).finite
    with pytest.raises(NumericsError, match="NaN or Inf in the attention scores"):
        decide(inputs, segment, 0, LayerSettings(config, 0.9, oracle.PROFILE))


def test_large_but_finite_logits_are_no_error(oracle):
    inputs = oracle.draw_inputs(6, sharpness=60.0)
    segment, rows, probe, weights, _ = probed(oracle, inputs)
    wanted = oracle.block_sums(oracle.at_rows(weights, rows.rows), segment.block_k)
    torch.testing.assert_close(probe.block_mass.double(), wanted, atol=2e-3, rtol=0)


def test_a_pooled_row_gives_a_column_the_mean_of_its_block(oracle):
    """An exact logit over a pooled log-sum-exp would overrate the column many times."""
    config = replace(oracle.SMALL, probe="pooled")
    inputs = oracle.draw_inputs(5)
    segment = split(inputs.q.shape[2], inputs.k.shape[2], config)[-1]
    rows = draw_rows(segment, *inputs.q.shape[:2], config, 3, inputs.first_keys())
    probe = run_probe(Context(inputs, segment, ()), rows, config)
    blocks = 4
    columns = torch.arange(blocks * config.block_k).expand(*inputs.q.shape[:2], -1)
    part, boundary = rows.slice_of(ROUTING), rows.slice_of(BOUNDARY)
    pooled = (part.start, part.stop, boundary.start)
    probed = ProbedRows(rows.rows, probe.lse, probe.block_mass, probe.sink_mass, segment.first, pooled)
    geometry = segment.geometry(inputs.first_keys())
    mass = column_mass(inputs.logits, probed, columns, geometry)
    late = (rows.rows[:, :, part] + segment.position >= blocks * config.block_k).flatten(0, 1).all(0)
    assert late.any()
    whole = mass[:, :, part][:, :, late].unflatten(-1, (blocks, -1)).sum(-1)
    torch.testing.assert_close(whole, probe.block_mass[:, :, part][:, :, late, :blocks])
