"""A pattern family that one step does not know is refused by its name, never run as another one. No GPU.

The fused path is refused before any kernel starts, so its part runs without Triton.
"""

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine import device_path, masks
from routesparse.engine.coverage import cover
from routesparse.engine.errors import PatternError
from routesparse.engine.execute import lower
from routesparse.engine.heatmap import draw
from routesparse.engine.patterns import library
from routesparse.engine.records import FAMILIES
from routesparse.kernels import families as kernel_families

paths = pytest.mark.parametrize("fused", [False, True], ids=["torch", "fused"])


@pytest.fixture
def case(oracle):
    """(inputs, segment, probe, candidates, indices) of a layer."""
    inputs = oracle.draw_inputs(1, n_q=500)
    segment, _, probe, candidates, indices = oracle.step_one_and_two(inputs)
    return inputs, segment, probe, candidates, indices


def with_floor(candidates, indices):
    """A family more, with its index: the candidates of top-p under another name, behind top-p's."""
    more = [replace(c, pattern="floor") for c in candidates if c.pattern == "block_top_p"]
    numbered = enumerate([*candidates[:-1], *more, candidates[-1]])
    index = replace(indices["block_top_p"], pattern="floor")
    return tuple(replace(c, index=i) for i, c in numbered), {**indices, "floor": index}


def choice_of(candidates, pattern):
    chosen = next(c.index for c in candidates if c.pattern == pattern)
    return np.full((1, 4), chosen)


def test_the_kernels_know_the_families_of_the_records_in_their_order():
    assert kernel_families.FAMILIES == FAMILIES
    assert masks.unpack(np.zeros((2, 1, 1), np.uint8)).shape[0] == len(FAMILIES)


def test_the_fused_path_refuses_a_family_that_the_kernels_do_not_know(case, monkeypatch):
    """lower_kernel's last branch would read top-p's map for it."""
    inputs, segment, probe, candidates, indices = case
    candidates, indices = with_floor(candidates, indices)
    choice = choice_of(candidates, "floor")
    monkeypatch.setattr(device_path, "fused", lambda _: True)
    told = r"kernels do not know pattern 'floor', only a_shape, .*block_top_p; add it to kernels/families"
    with pytest.raises(PatternError, match=told):
        cover(inputs, segment, probe, indices, candidates)
    with pytest.raises(PatternError, match=told):
        lower(segment, indices, candidates, choice, None, None, None)
    with pytest.raises(PatternError, match=told):
        draw(probe, segment, indices)


def test_the_torch_path_scores_and_lowers_another_family_and_refuses_to_draw_it(case):
    inputs, segment, probe, candidates, indices = case
    more, built = with_floor(candidates, indices)
    covered = cover(inputs, segment, probe, built, more)
    floor, top_p = (choice_of(more, name)[0, 0] for name in ("floor", "block_top_p"))
    assert (covered.row_mass[..., floor] == covered.row_mass[..., top_p]).all()
    plans = [lower(segment, built, more, np.full((1, 4), c), None, None, None) for c in (floor, top_p)]
    assert (plans[0].to_mask() == plans[1].to_mask()).all()
    with pytest.raises(PatternError, match="do not know pattern 'floor'"):
        draw(probe, segment, built)


@paths
def test_a_candidate_without_an_index_is_not_scored_or_run_as_dense(case, monkeypatch, fused):
    inputs, segment, probe, candidates, indices = case
    monkeypatch.setattr(device_path, "fused", lambda _: fused)
    without = {name: index for name, index in indices.items() if name != "block_sparse"}
    told = r"pattern 'block_sparse' has no index among a_shape, block_top_p, vertical_slash; build one"
    with pytest.raises(PatternError, match=told):
        cover(inputs, segment, probe, without, candidates)
    with pytest.raises(PatternError, match=told):
        lower(segment, without, candidates, choice_of(candidates, "block_sparse"), None, None, None)
    with pytest.raises(PatternError, match=told):
        draw(probe, segment, without)


@pytest.mark.parametrize("order", [[-1, 0], [1, 0]], ids=["dense-first", "levels-swapped"])
def test_the_fused_path_refuses_candidates_out_of_the_kernels_order(case, monkeypatch, order):
    """Its scores come back family by family, level by level, dense last."""
    inputs, segment, probe, candidates, indices = case
    monkeypatch.setattr(device_path, "fused", lambda _: True)
    moved = [candidates[i] for i in order]
    others = [c for c in candidates if c not in moved]
    with pytest.raises(PatternError, match="are out of order; the kernels score a_shape"):
        cover(inputs, segment, probe, indices, (*moved, *others))


def test_a_budget_of_an_unknown_family_has_no_words(case):
    segment = case[1]
    assert library(segment)[-1].budget == "all"
    with pytest.raises(PatternError, match="'floor' has no words for its budget"):
        replace(library(segment)[0], pattern="floor").budget  # noqa: B018
