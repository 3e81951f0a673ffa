"""A pattern family that the operations do not know is refused by its name, never run as another one. No GPU."""

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.decide.heatmap import draw
from routesparse.engine.errors import PatternError
from routesparse.engine.method.patterns import library
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.method.row_plan import lower
from routesparse.engine.record import masks
from routesparse.engine.rows import FAMILIES
from routesparse.kernels import families as kernel_families


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


def test_a_family_that_the_kernels_do_not_know_is_refused(case):
    """lower_kernel's last branch would read top-p's map for it."""
    inputs, segment, probe, candidates, indices = case
    candidates, indices = with_floor(candidates, indices)
    choice = choice_of(candidates, "floor")
    told = r"kernels do not know pattern 'floor', only a_shape, .*block_top_p; add it to kernels/families"
    with pytest.raises(PatternError, match=told):
        candidate_mass(inputs, segment, probe, indices, candidates)
    with pytest.raises(PatternError, match=told):
        lower(inputs, segment, indices, candidates, choice)
    with pytest.raises(PatternError, match=told):
        draw(probe, segment, indices)


def test_a_candidate_without_an_index_is_not_scored_or_run_as_dense(case):
    inputs, segment, probe, candidates, indices = case
    without = {name: index for name, index in indices.items() if name != "block_sparse"}
    told = r"pattern 'block_sparse' has no index among a_shape, block_top_p, vertical_slash; build one"
    with pytest.raises(PatternError, match=told):
        candidate_mass(inputs, segment, probe, without, candidates)
    with pytest.raises(PatternError, match=told):
        lower(inputs, segment, without, candidates, choice_of(candidates, "block_sparse"))
    with pytest.raises(PatternError, match=told):
        draw(probe, segment, without)


@pytest.mark.parametrize("order", [[-1, 0], [1, 0]], ids=["dense-first", "levels-swapped"])
def test_candidates_out_of_the_kernels_order_are_refused(case, order):
    """Scores come back family by family, level by level, dense last."""
    inputs, segment, probe, candidates, indices = case
    moved = [candidates[i] for i in order]
    others = [c for c in candidates if c not in moved]
    with pytest.raises(PatternError, match="are out of order; scoring takes a_shape"):
        candidate_mass(inputs, segment, probe, indices, (*moved, *others))


def test_a_budget_of_an_unknown_family_has_no_words(case):
    segment = case[1]
    assert library(segment)[-1].budget == "all"
    with pytest.raises(PatternError, match="'floor' has no words for its budget"):
        replace(library(segment)[0], pattern="floor").budget  # noqa: B018
