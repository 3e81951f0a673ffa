"""Related work: the registry, its page, and what its rules find on prompts that we made. CPU only."""

from __future__ import annotations

import importlib
from dataclasses import replace
from pathlib import Path

import pytest
import torch

from routesparse.engine.lab.rivals.global_router import kept_mass
from routesparse.engine.lab.rivals.patterns.bigbird import BigBird
from routesparse.engine.lab.rivals.patterns.longformer import Longformer
from routesparse.engine.lab.rivals.patterns.reformer import Reformer
from routesparse.engine.lab.rivals.patterns.sparse_transformer import FixedPattern, StridedPattern
from routesparse.engine.lab.rivals.random_blocks import RandomBlocks
from routesparse.engine.lab.rivals.related import LABELS, RELATED, table
from routesparse.engine.lab.rivals.scorers.dhsa import Dhsa
from routesparse.engine.lab.rivals.scorers.dynamic_sparse import DynamicSparse
from routesparse.engine.lab.rivals.scorers.infllm import InfLLM
from routesparse.engine.lab.rivals.scorers.quest import Quest
from routesparse.engine.lab.rivals.scorers.sparq import SparQ
from routesparse.engine.lab.rivals.static_a_shape import Window
from routesparse.engine.lab.studies.selection import methods
from routesparse.engine.method import families

FOLDER = Path(importlib.import_module("routesparse.engine.lab.rivals").__file__).parent
SCORERS = {
    "quest": Quest(6),
    "sparq": SparQ(6, dimensions=8),
    "dynamic_sparse": DynamicSparse(6),
    "dhsa": Dhsa(6),
    "infllm": InfLLM(units=2, initial_tokens=16, local_tokens=64),
}
PATTERNS = {
    "sparse_transformer_strided": StridedPattern(200),
    "sparse_transformer_fixed": FixedPattern(8, 64),
    "longformer": Longformer(64, global_first=16),
    "bigbird": BigBird(4, 3, 1),
    "reformer": Reformer(3, 8),
}


def test_every_line_names_a_method_of_the_study_in_its_file() -> None:
    assert len({r.method for r in RELATED}) == len(RELATED)
    for related in RELATED:
        module, kind, parameter, settings = methods.RULES[related.method]
        assert related.file == f"{module.replace('.', '/')}.py", related
        assert related.label in LABELS and related.differs
        assert parameter in methods.find(related.method, settings[0]).rule.__dataclass_fields__
        docstring = importlib.import_module(f"routesparse.engine.lab.rivals.{module}").__doc__
        assert related.arxiv in docstring and kind in (FOLDER / related.file).read_text()


def test_a_pattern_inside_names_a_family_that_is_registered() -> None:
    names = {family.name for family in families.registered()}
    inside = [r for r in RELATED if r.label == "pattern inside"]
    assert inside
    for related in inside:
        assert any(f"`{name}`" in related.differs for name in names), related


def test_every_file_of_scorers_and_patterns_stands_in_the_table() -> None:
    files = {
        path.relative_to(FOLDER).as_posix()
        for room in ("scorers", "patterns")
        for path in (FOLDER / room).glob("*.py")
    }
    shared = {"scorers/__init__.py", "patterns/__init__.py", "scorers/row_shares.py"}
    assert files - shared == {r.file for r in RELATED if "/" in r.file}


def test_the_page_has_the_table() -> None:
    assert "\n".join(table()) in (FOLDER / "README.md").read_text()


def mass_and_area(view, rule) -> tuple[float, float]:
    """Mean exact attention that a rule's selection holds, forced blocks included, and its share of causal blocks."""
    rows = torch.arange(view.tokens)
    found = rule(view)
    forced, causal = view.forced_and_causal
    kept = ((found.blocks | forced) & causal).expand(1, view.heads, -1, -1)
    area = float(kept.sum() / causal.sum() / view.heads)
    if found.columns is not None:
        area += found.columns.shape[-1] / view.tokens
    return float(kept_mass(view, found, rows, view.row_softmax(rows))), area


@pytest.mark.parametrize("name", SCORERS)
def test_a_scorer_holds_more_attention_than_random_blocks_of_its_area(make_view, name) -> None:
    view = make_view(700, 32, 16, sharpness=3.0)
    mass, area = mass_and_area(view, SCORERS[name])
    always = float(view.forced_and_causal[0].sum() / view.forced_and_causal[1].sum())
    chance = RandomBlocks((area - always) / (1 - always))
    masses, areas = zip(*(mass_and_area(replace(view, salt=str(i)), chance) for i in range(3)), strict=True)
    assert area < 0.6 and min(areas) > area - 0.03
    assert mass > max(masses) + 0.02


# InfLLM asks what a whole block of queries wants; its own tests have a needle for one.
@pytest.mark.parametrize("name", sorted(SCORERS.keys() - {"infllm"}))
def test_a_scorer_finds_a_far_key_that_one_row_reads_above_all(needle, name) -> None:
    view, row, key = needle
    assert float(view.row_softmax(torch.tensor([row]))[..., key].min()) > 0.99
    blocks = SCORERS[name](view).blocks
    assert blocks[0, :, row // view.block_q, key // view.block_k].all()
    assert not Window(64)(view).blocks[..., row // view.block_q, key // view.block_k].any()


@pytest.mark.parametrize("name", PATTERNS)
def test_a_pattern_holds_more_attention_than_its_area(make_view, name) -> None:
    """The fixture's attention has a sink and drifts along the prompt, as the patterns suppose."""
    mass, area = mass_and_area(make_view(700, 32, 16), PATTERNS[name])
    assert area < 0.7 and mass > area + 0.02
