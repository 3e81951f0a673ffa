"""A pattern family that the operations do not know is refused by its name, never run as another one. No GPU."""

from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.decide.heatmap import draw
from routesparse.engine.errors import PatternError
from routesparse.engine.method import families
from routesparse.engine.method.attend import lower
from routesparse.engine.method.records import Context
from routesparse.engine.method.retained_mass import candidate_mass


@pytest.fixture
def case(oracle):
    """(inputs, segment, probe, candidates, indices) of a layer."""
    inputs = oracle.draw_inputs(1, n_q=500)
    segment, _, probe, candidates, indices = oracle.step_one_and_two(inputs)
    return inputs, segment, probe, candidates, indices


def with_fifth(candidates, indices):
    """A family more, with its index: the candidates of the floor under another name, behind the floor's."""
    more = [replace(c, pattern="fifth") for c in candidates if c.pattern == "floor"]
    numbered = enumerate([*candidates[:-1], *more, candidates[-1]])
    index = replace(indices["floor"], pattern="fifth")
    return tuple(replace(c, index=i) for i, c in numbered), {**indices, "fifth": index}


def choice_of(candidates, pattern):
    chosen = next(c.index for c in candidates if c.pattern == pattern)
    return np.full((1, 4), chosen)


def test_a_family_that_is_not_registered_is_refused(case):
    inputs, segment, probe, candidates, indices = case
    candidates, indices = with_fifth(candidates, indices)
    choice = choice_of(candidates, "fifth")
    told = rf"pattern 'fifth' is not registered, only {', '.join(families.names())}; add its family"
    with pytest.raises(PatternError, match=told):
        candidate_mass(Context(inputs, segment, candidates, probe), indices)
    with pytest.raises(PatternError, match=told):
        lower(Context(inputs, segment, candidates), indices, choice)
    with pytest.raises(PatternError, match=told):
        draw(probe, segment, indices)


def test_a_candidate_without_an_index_is_not_scored_or_run_as_dense(case):
    inputs, segment, probe, candidates, indices = case
    without = {name: index for name, index in indices.items() if name != "block_sparse"}
    told = rf"pattern 'block_sparse' has no index among {', '.join(sorted(without))}; build one"
    with pytest.raises(PatternError, match=told):
        candidate_mass(Context(inputs, segment, candidates, probe), without)
    with pytest.raises(PatternError, match=told):
        lower(Context(inputs, segment, candidates), without, choice_of(candidates, "block_sparse"))
    with pytest.raises(PatternError, match=told):
        draw(probe, segment, without)


@pytest.mark.parametrize("order", [[-1, 0], [1, 0]], ids=["dense-first", "levels-swapped"])
def test_candidates_out_of_the_kernels_order_are_refused(case, order):
    """Scores come back family by family, level by level, dense last."""
    inputs, segment, probe, candidates, indices = case
    moved = [candidates[i] for i in order]
    others = [c for c in candidates if c not in moved]
    with pytest.raises(PatternError, match="are out of order; scoring takes a_shape"):
        candidate_mass(Context(inputs, segment, (*moved, *others), probe), indices)


@pytest.mark.parametrize(
    ("name", "letter"), [("fifth", "F"), ("fifth", "D"), ("dense", "X"), ("a_shape", "X")]
)
def test_two_families_of_one_name_or_letter_are_refused(name, letter):
    family = families.find("floor")
    more = replace(family, name=name, look=replace(family.look, letter=letter))
    with (
        pytest.raises(PatternError, match="two pattern families have the"),
        families.using(*families.registered(), more),
    ):
        pass
    assert more not in families.registered()


def test_only_one_family_may_have_columns(case):
    *_, indices = case
    twice = {**indices, "block_sparse": replace(indices["vertical_slash"], pattern="block_sparse")}
    with pytest.raises(
        PatternError, match="vertical_slash, block_sparse read single columns; one family may"
    ):
        draw(case[2], case[1], twice)
