"""A stranger adds a pattern family: one object, registered; nothing else in the repository is touched. CPU only.

The family keeps every s-th KV block. It is scored, chosen, run, recorded, written, read and shown like ours.
"""

from collections.abc import Sequence
from dataclasses import replace

import numpy as np
import pytest
import torch

from routesparse.app.ui import design
from routesparse.engine.decide.heatmap import draw
from routesparse.engine.decide.layer import decide, plan_of
from routesparse.engine.decide.settings import LayerSettings
from routesparse.engine.errors import PatternError
from routesparse.engine.method import families
from routesparse.engine.method.families import NEVER, Context, Family, FamilyIndex, Look
from routesparse.engine.method.patterns import Candidate, library, library_hash
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.method.segments import split
from routesparse.engine.record import masks

STRIDES = (8, 4, 2)


def reads(context: Context, budget: Candidate, unit: tuple[int, int], i: int) -> range:
    return range(0, context.segment.key_blocks, budget.blocks)


def build(context: Context, budgets: Sequence[Candidate]) -> FamilyIndex:
    forced, causal = context.forced_and_causal
    block = torch.arange(causal.shape[-1])
    levels = torch.full(causal.shape, NEVER, dtype=torch.uint8)
    for budget in reversed(budgets):
        levels[..., block % budget.blocks == 0] = budget.level
    return FamilyIndex("strided", levels.masked_fill(forced, 0).masked_fill(~causal, NEVER))


STRIDED = Family(
    name="strided",
    look=Look("strided", "S"),
    budgets=lambda segment: [{"blocks": stride} for stride in STRIDES],
    text=lambda budget: f"one block in {budget.blocks}",
    build=build,
    reads=reads,
    stamp=(STRIDES,),
)


@pytest.fixture(params=["fifth", "alone"])
def strided(request):
    """The family beside ours, and without them."""
    others = families.registered() if request.param == "fifth" else ()
    with families.using(*others, STRIDED):
        yield


@pytest.fixture
def inputs(oracle):
    return oracle.draw_inputs(1, n_q=613, batch=2, key_start=[0, 137])


@pytest.fixture
def segment(oracle, inputs):
    return split(inputs.q.shape[2], inputs.k.shape[2], oracle.SMALL)[-1]


def test_the_library_its_stamp_and_its_words_know_the_family(segment):
    before = library_hash()
    with families.using(*families.registered(), STRIDED):
        found = [c for c in library(segment) if c.pattern == "strided"]
        assert [(c.level, c.budget) for c in found] == [
            (i, f"one block in {s}") for i, s in enumerate(STRIDES)
        ]
        assert library(segment)[-1].pattern == "dense"
        assert library_hash() != before
    assert library_hash() == before
    assert "strided" not in {c.pattern for c in library(segment)}


def test_its_index_is_its_definition_and_its_mass_that_of_the_plan(oracle, inputs, strided):
    """The retained mass by which it is chosen is the softmax mass of the keys that its plan reads."""
    segment, rows, probe, candidates, indices = oracle.step_one_and_two(inputs)
    context = Context(inputs, segment, candidates, probe)
    forced, causal = (x.expand(indices["strided"].levels.shape)[:, 0] for x in context.forced_and_causal)
    weights = oracle.softmax(inputs)[0]
    found = candidate_mass(inputs, segment, probe, indices, candidates)
    for budget in context.budgets("strided"):
        read = indices["strided"].levels[:, 0] <= budget.level
        for i in range(segment.query_blocks):
            wanted = torch.zeros(segment.key_blocks, dtype=torch.bool)
            wanted[list(reads(context, budget, (0, 0), i))] = True
            assert torch.equal(read[:, i], wanted & causal[:, i] | forced[:, i])
        mask = oracle.plan_of_candidate(inputs, segment, candidates, indices, budget.index).to_mask()
        kept = (weights[:, :, segment.first :] * mask).sum(-1).gather(2, rows.rows)
        scored = found.row_mass[..., budget.index].double()
        torch.testing.assert_close(scored, kept, atol=1e-5, rtol=0)


def test_a_layer_chooses_it_and_runs_and_records_what_it_reads(oracle, inputs, segment):
    """With no other sparse family, every sparse unit is its own; packed masks hold an odd number of families."""
    with families.using(STRIDED):
        config = replace(oracle.SMALL, policy="certified", tau=0.05)
        decision = decide(inputs, segment, 0, LayerSettings(config, 0.1, oracle.PROFILE))
        chosen = {decision.candidates[c].pattern for c in decision.choice.flatten()}
        assert "strided" in chosen <= {"strided", "dense"}
        plan = plan_of(decision, inputs).validate()
        pictures = draw(decision.probe, segment, decision.indices).leave().read()
    unit = int(np.flatnonzero(decision.sparse)[0])
    budget = decision.candidates[decision.choice.flatten()[unit]]
    keys = plan.to_mask().flatten(0, 1)[unit]
    picture = pictures[unit]
    shape = picture.masks.shape[1:]
    levels = masks.decode(picture.masks.tobytes(), *shape, ["strided"])["strided"]
    blocks = torch.nn.functional.pad(keys, (0, -keys.shape[-1] % segment.block_k))
    read = blocks.unflatten(-1, (-1, segment.block_k)).any(-1).numpy()
    at = picture.positions - segment.position
    body = (at < segment.body) & ~plan.dense_rows.flatten(0, 1)[unit].numpy()[at // segment.block_q]
    first = int(inputs.first_keys()[unit // inputs.q.shape[1]])
    body &= picture.positions >= first
    assert body.sum() > 10
    np.testing.assert_array_equal(levels[body] <= budget.level, read[at[body]])


def test_a_layer_scores_it_beside_the_floor_at_a_price(oracle, inputs, segment):
    with families.using(*families.registered(), STRIDED):
        decision = decide(inputs, segment, 0, LayerSettings(oracle.SMALL, 0.0, oracle.PROFILE))
        plan_of(decision, inputs).validate()
        own = [c.index for c in decision.candidates if c.pattern == "strided"]
    assert own and decision.certified.layer is not None
    assert np.isfinite(decision.scores.mass[:, own]).all()


def test_without_the_floor_there_is_no_price(oracle, inputs, segment):
    with families.using(STRIDED), pytest.raises(PatternError, match="needs the family 'floor'"):
        decide(inputs, segment, 0, LayerSettings(oracle.SMALL, 0.0, oracle.PROFILE))


def test_pages_show_it_and_one_that_they_do_not_know(strided):
    """A bundle of another version: its name, its initial, a neutral colour; never a KeyError."""
    assert design.letter("strided") == "S" and families.in_order(["other"])[-3:] == [
        "strided",
        "other",
        "dense",
    ]
    for theme in (design.LIGHT, design.DARK):
        assert theme.pattern("strided") == theme.pattern("other")
        assert design.contrast(theme.pattern("other"), theme.panel) > 3
    assert (design.letter("other"), design.name("other")) == ("O", "other")
