"""The candidate library: nested budgets, typed and placed by density, stamped. No GPU."""

import ast
import importlib
import inspect
from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.config import RouterConfig
from routesparse.engine.method import families
from routesparse.engine.method.families import floor, library, library_hash
from routesparse.engine.method.segments import blocks_for_density, split

LENGTHS = [384, 514, 1_000, 2_048, 4_096, 16_384, 131_072]


def last_segment(tokens):
    return split(tokens, tokens, RouterConfig())[-1]


@pytest.mark.parametrize("tokens", LENGTHS)
def test_candidates_are_in_order_levels_count_from_0_and_no_budget_comes_twice(tokens):
    """That dearer ones read more is test_families.py's: what the numbers of a budget mean is its family's to say."""
    candidates = library(last_segment(tokens))
    assert [c.index for c in candidates] == list(range(len(candidates)))
    assert [c.pattern for c in candidates].index("dense") == len(candidates) - 1
    for pattern in families.names():
        family = [c for c in candidates if c.pattern == pattern]
        assert [c.level for c in family] == list(range(len(family)))
        assert len({(c.blocks, c.columns, c.share) for c in family}) == len(family)


@pytest.mark.parametrize("density", [0.0, 0.02, 0.1, 0.33, 0.5, 1.0])
@pytest.mark.parametrize(
    "causal", [[2], [2, 4, 6], list(range(2, 90, 2)), [7] * 5], ids=lambda c: f"m{len(c)}"
)
def test_blocks_for_a_density_is_the_least_that_reaches_it_and_at_least_two(causal, density):
    causal = np.array(causal)
    target = density * causal.sum()
    brute = next(x for x in range(1, causal.max() + 1) if sum(min(x, c) for c in causal) >= target)
    assert blocks_for_density(causal, density) == max(2, brute)


def test_the_priced_level_of_the_floor_is_the_segments_own():
    segment = last_segment(131_072)
    shares = [c.share for c in library(segment) if c.pattern == "floor"]
    assert shares[floor.PRICED_LEVEL] == segment.floor_share


def test_every_budget_is_told_in_words_with_its_unit():
    words = {c.pattern: c.budget for c in library(last_segment(16_384))}
    assert words["dense"] == "all"
    assert words["a_shape"].startswith("sink 64 + local ") and words["a_shape"].endswith(" tokens")
    assert "columns" in words["vertical_slash"] and "slash bands of 64" in words["vertical_slash"]
    assert words["block_sparse"].endswith(" blocks of 64 a row")
    assert words["floor"] == "blocks that hold 0.195 % of the rows or more"


@pytest.mark.parametrize("family", families.registered(), ids=lambda family: family.name)
def test_the_stamp_changes_with_every_rule_of_the_library(family):
    before = library_hash()
    for place in range(len(family.stamp)):
        changed = (*family.stamp[:place], (0.123,), *family.stamp[place + 1 :])
        others = [replace(f, stamp=changed) if f is family else f for f in families.registered()]
        with families.using(*others):
            assert library_hash() != before
    assert library_hash() == before


@pytest.mark.parametrize("family", families.registered(), ids=lambda family: family.name)
def test_a_familys_stamp_holds_every_constant_of_its_file(family):
    module = importlib.import_module(family.build.__module__)
    tree = ast.parse(inspect.getsource(module))
    assigned = {node.targets[0].id for node in tree.body if isinstance(node, ast.Assign)} - {"NAME", "FAMILY"}
    assert (
        assigned and [vars(module)[name] for name in assigned if vars(module)[name] not in family.stamp] == []
    )


def test_the_stamp_changes_with_the_librarys_version(monkeypatch):
    before = library_hash()
    monkeypatch.setattr(families, "LIBRARY_VERSION", 99)
    assert library_hash() != before
