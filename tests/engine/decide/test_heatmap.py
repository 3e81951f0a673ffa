"""Probe pictures: sorted rows, no certificate rows, and pooling by maximum so that lines survive. CPU only."""

import numpy as np
import pytest
import torch
import torch.nn.functional as F

from routesparse.engine import probe_masks
from routesparse.engine.decide import heatmap as heatmap_module
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.heatmap import Heatmap, draw
from routesparse.engine.decide.layer import decide
from routesparse.engine.method import families
from routesparse.engine.method.records import BOUNDARY, CERTIFICATE, RECENT, ROUTING
from routesparse.engine.method.segments import split


@pytest.fixture
def inputs(oracle):
    return oracle.draw_inputs(0, n_q=333, n_k=901)


@pytest.fixture
def decision(oracle, inputs):
    segment = split(333, 901, oracle.SMALL)[-1]
    return decide(inputs, segment, 0, LayerSettings(oracle.SMALL, 0.5, oracle.PROFILE))


def heatmaps(decision):
    """One picture per unit."""
    return draw(decision.probe, decision.segment, decision.indices).leave().read()


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
        np.testing.assert_array_equal(picture.mass, full.reduced(1, 3).mass)


@pytest.mark.parametrize(("columns", "factor"), [(57, 1), (57, 2), (57, 4), (57, 57), (57, 100)])
def test_pooling_takes_the_maximum_of_each_run_of_columns(columns, factor):
    mass = torch.rand(5, columns, generator=torch.Generator().manual_seed(0)).half().numpy()
    kept = np.zeros((2, 5, columns), np.uint8)
    pooled = Heatmap(np.arange(5), np.zeros(5, np.uint8), mass, 2, kept, 2).reduced(1, factor)
    assert pooled.pool == 2 * factor
    for j in range(pooled.mass.shape[1]):
        np.testing.assert_array_equal(pooled.mass[:, j], mass[:, j * factor : (j + 1) * factor].max(1))
    assert pooled.mass.shape[1] == -(-columns // factor)


def read_blocks(plan):
    """bool [units, rows, KV blocks]: where the plan reads at least one key."""
    keys = plan.to_mask().flatten(0, 1)
    return F.pad(keys, (0, -keys.shape[-1] % 16)).unflatten(-1, (-1, 16)).any(-1).numpy()


def test_masks_show_exactly_what_the_plan_of_every_budget_reads(oracle, inputs, decision):
    body = decision.segment.body
    pictures = heatmaps(decision)
    for candidate in decision.candidates[:-1]:
        reads = read_blocks(
            oracle.plan_of_candidate(
                inputs, decision.segment, decision.candidates, decision.indices, candidate.index
            )
        )
        for unit, picture in enumerate(pictures):
            levels = probe_masks.unpack(picture.masks)[families.names().index(candidate.pattern)]
            rows = picture.positions - decision.segment.position
            inside = rows < body
            np.testing.assert_array_equal(levels[inside] <= candidate.level, reads[unit][rows[inside]])


@pytest.mark.parametrize(
    "names", [["one"], ["one", "two", "three"], ["one", "two", "three", "four"]], ids=len
)
@pytest.mark.parametrize("factor", [1, 3, 57, 80])
def test_a_pooled_mask_cell_is_read_where_any_of_its_parts_is(factor, names):
    levels = np.random.default_rng(0).integers(0, probe_masks.NEVER + 1, (len(names), 6, 57)).astype(np.uint8)
    packed = probe_masks.pack(levels)
    assert len(packed) == (len(names) + 1) // 2, "two families a byte"
    np.testing.assert_array_equal(probe_masks.unpack(packed)[: len(names)], levels)
    pooled = probe_masks.pooled(packed, factor)
    found = probe_masks.decode(pooled.tobytes(), 6, pooled.shape[-1], names)
    for family, level in zip(names, levels, strict=True):
        for j in range(pooled.shape[-1]):
            np.testing.assert_array_equal(found[family][:, j], level[:, j * factor : (j + 1) * factor].min(1))
