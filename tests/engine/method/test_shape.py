"""Shapes of heads that are made of one part each. No GPU."""

import numpy as np
import pytest

from routesparse.engine.method import shape

CELLS, ROWS = 64, 40
OWN = np.sort(np.random.default_rng(0).integers(8, CELLS, ROWS))


def head(part):
    """Mass [rows, cells] of which .7 lies in one part, the rest evenly on all cells that the row may see."""
    mass = np.zeros((ROWS, CELLS))
    for row, own in enumerate(OWN):
        mass[row, : own + 1] = 0.3 / (own + 1)
        places = {
            "sink": [0],
            "local": [own, own - 1],
            "vertical": [3, 5],
            "slash": [own - 4, own - 6],
            "scattered": [int(np.random.default_rng(row).integers(1, own - 1))],
        }[part]
        mass[row, places] += 0.7 / len(places)
    return mass


@pytest.mark.parametrize("part", shape.PARTS)
def test_a_head_made_of_one_part_has_most_of_its_attention_there(part):
    found = shape.shares(head(part)[None], OWN[None])[0]
    assert found.sum() == pytest.approx(1)
    assert found[shape.PARTS.index(part)] > 0.65 and shape.kind(found, dense=False) == part


def test_a_mask_is_judged_by_what_it_reads_and_many_heads_as_each_alone():
    heads = np.stack([head(part) for part in shape.PARTS] * 20)
    own = np.broadcast_to(OWN, (100, ROWS))
    alone = np.concatenate([shape.shares(one[None], OWN[None]) for one in heads[:5]])
    np.testing.assert_allclose(shape.shares(heads, own)[-5:], alone)
    mask = np.zeros((1, ROWS, CELLS), bool)
    mask[:, :, 7] = mask[:, :, 0] = True
    found = shape.shares(mask / 2, OWN[None], mask)[0]
    assert found[shape.PARTS.index("vertical")] == pytest.approx(0.5, abs=0.06)


def test_what_was_not_measured_has_no_shape_and_a_dense_head_reads_all():
    nothing = shape.shares(np.zeros((1, ROWS, CELLS)), OWN[None])[0]
    assert np.isnan(nothing).all() and shape.kind(nothing, dense=False) is None
    assert shape.kind(nothing, dense=True) == "dense"


def test_rows_beyond_the_last_cell_of_a_picture_count_as_in_it():
    mass = head("vertical")[None, :, : CELLS // 2]
    np.testing.assert_allclose(
        shape.shares(mass, OWN[None]), shape.shares(mass, np.minimum(OWN, CELLS // 2 - 1)[None])
    )
