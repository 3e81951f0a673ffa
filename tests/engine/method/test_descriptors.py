"""Descriptors of a probed head on attention whose entropy, locality and agreement are known beforehand. CPU only."""

import math
from dataclasses import replace

import pytest
import torch

from routesparse.engine.method.policy import LOCAL_BAND_TOKENS
from routesparse.engine.method.probe import describe, draw_rows
from routesparse.engine.method.records import CERTIFICATE, Probe
from routesparse.engine.method.segments import split
from routesparse.kernels.row_mass import row_mass


@pytest.fixture
def made(oracle):
    """(make, segment): make(fill) gives a probe whose block mass is fill(position, block) normalised."""
    segment = split(4_096, 4_096, replace(oracle.SMALL, segment_tokens=4_096))[-1]
    rows = draw_rows(segment, 1, 2, oracle.SMALL, 0, torch.zeros(1, dtype=torch.int64))

    def make(fill):
        position = rows.rows.unsqueeze(-1) + segment.position
        block = torch.arange(segment.key_blocks)
        mass = fill(position, block).float() * (block <= position // segment.block_k)
        mass = mass / mass.sum(-1, keepdim=True)
        # Masses are their own softmax: the operation is handed their logarithms.
        first = torch.zeros(1, dtype=torch.int64)
        positions = rows.rows + segment.position
        found = row_mass(mass.log(), None, positions, first, segment.block_k, LOCAL_BAND_TOKENS)
        return Probe(rows, *found[:1], mass, *found[1:5], found.lse, found.lse, found.finite)

    return make, segment


def test_one_block_has_no_entropy_and_a_diffuse_row_has_the_log_of_its_blocks(made):
    make, segment = made
    single = describe(make(lambda p, j: j == 0))
    assert single.entropy.abs().max() == 0
    probe = make(lambda p, j: torch.ones_like(p) * torch.ones_like(j))
    count = (probe.block_mass > 0).sum(-1).double()
    routed = torch.ones(count.shape[-1], dtype=torch.bool)
    routed[probe.rows.slice_of(CERTIFICATE)] = False
    wanted = count[..., routed].log().mean(-1).float()
    torch.testing.assert_close(describe(probe).entropy, wanted, atol=1e-4, rtol=0)
    assert float(wanted.max()) < math.log(segment.key_blocks)


def test_the_local_band_holds_what_lies_within_512_tokens(made):
    make, segment = made
    assert describe(make(lambda p, j: p // segment.block_k == j)).local_band.min() == 1.0
    probe = make(lambda p, j: (j == 0).expand(*p.shape[:-1], -1))
    near = (probe.rows.rows // segment.block_k < 512 // segment.block_k).float()
    part = probe.rows.slice_of(CERTIFICATE)
    others = torch.cat([near[..., : part.start], near[..., part.stop :]], -1)
    assert 0 < others.mean() < 1
    torch.testing.assert_close(describe(probe).local_band, others.mean(-1))


def test_rows_that_look_at_the_same_distance_agree(made):
    make, segment = made
    probe = make(lambda p, j: (p // segment.block_k - j) == 0)
    assert describe(probe).agreement.min() == pytest.approx(1.0)


def test_recent_rows_that_ask_the_far_past_disagree_with_a_local_body(oracle, made):
    make, segment = made
    first_recent = segment.rows - oracle.SMALL.recent_rows
    probe = make(lambda p, j: torch.where(p >= first_recent, j == 0, p // segment.block_k == j))
    assert describe(probe).agreement.max() < 0.1
