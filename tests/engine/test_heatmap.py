"""Probe pictures: sorted rows, no certificate rows, and pooling by maximum so that lines survive. CPU only."""

import numpy as np
import pytest
import torch

from routesparse.engine import heatmap as heatmap_module
from routesparse.engine.heatmap import Heatmap, heatmaps
from routesparse.engine.layer import decide
from routesparse.engine.probe import BOUNDARY, CERTIFICATE, RECENT, ROUTING
from routesparse.engine.segments import split


@pytest.fixture
def decision(oracle):
    inputs = oracle.draw_inputs(0, n_q=333, n_k=901)
    segment = split(333, 901, oracle.SMALL)[-1]
    return decide(inputs, segment, 0, oracle.SMALL, 0.5, oracle.PROFILE, None)


def test_there_is_one_picture_per_unit_with_its_own_rows(decision):
    pictures = heatmaps(decision)
    assert len(pictures) == 4
    assert len({tuple(p.positions.tolist()) for p in pictures}) == 4


def test_each_row_holds_the_block_mass_of_its_position(decision):
    rows = decision.probe.rows
    for unit, picture in enumerate(heatmaps(decision)):
        mass = {}
        for kind in (RECENT, ROUTING, BOUNDARY):
            for place in range(*rows.slice_of(kind).indices(10**6)):
                position = int(rows.rows[0, unit, place]) + decision.segment.position
                mass[kind, position] = decision.probe.block_mass[0, unit, place].half().numpy()
        assert (np.diff(picture.positions) >= 0).all() and picture.pool == 1
        for position, kind, row in zip(picture.positions, picture.kinds, picture.mass, strict=True):
            np.testing.assert_array_equal(row, mass[int(kind), int(position)])


def test_the_certificate_rows_are_not_shown_and_a_quarter_of_the_recent_ones_is(decision):
    for picture in heatmaps(decision):
        kinds = picture.kinds.tolist()
        assert CERTIFICATE not in kinds
        assert (kinds.count(RECENT), kinds.count(ROUTING), kinds.count(BOUNDARY)) == (6, 16, 8)


def test_long_prompts_are_pooled_to_the_column_limit(decision, monkeypatch):
    whole = heatmaps(decision)
    monkeypatch.setattr(heatmap_module, "MAX_COLUMNS", 20)
    for picture, full in zip(heatmaps(decision), whole, strict=True):
        assert picture.pool == 3 and picture.mass.shape[1] == 19  # 57 blocks
        np.testing.assert_array_equal(picture.mass, full.pooled(3).mass)


@pytest.mark.parametrize(("columns", "factor"), [(57, 1), (57, 2), (57, 4), (57, 57), (57, 100)])
def test_pooling_takes_the_maximum_of_each_run_of_columns(columns, factor):
    mass = torch.rand(5, columns, generator=torch.Generator().manual_seed(0)).half().numpy()
    pooled = Heatmap(np.arange(5), np.zeros(5, np.uint8), mass, 2).pooled(factor)
    assert pooled.pool == 2 * factor
    for j in range(pooled.mass.shape[1]):
        np.testing.assert_array_equal(pooled.mass[:, j], mass[:, j * factor : (j + 1) * factor].max(1))
    assert pooled.mass.shape[1] == -(-columns // factor)
