"""A stranger adds a pattern family: the file that CONTRIBUTING.md shows, registered; nothing else is touched.

It is scored, chosen, run, recorded, written, read and shown like ours, on a CPU and by the GPU's kernels, which a GPU
runs where there is one, and Triton's interpreter elsewhere.
"""

import importlib.util
import re
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import torch

from routesparse.engine import probe_masks
from routesparse.engine.calibration import artifact
from routesparse.engine.config import RouterConfig
from routesparse.engine.decide.decision import LayerSettings
from routesparse.engine.decide.heatmap import draw
from routesparse.engine.decide.layer import decide, plan_of
from routesparse.engine.errors import PatternError
from routesparse.engine.method import families
from routesparse.engine.method.families import library, library_hash, stamped_families
from routesparse.engine.method.records import Context
from routesparse.engine.method.retained_mass import candidate_mass
from routesparse.engine.method.segments import split
from tests.engine import fused_run
from tests.triton_process import triton_process

ROOT = Path(__file__).parents[3]


def loaded(name, path):
    spec = importlib.util.spec_from_file_location(name, path)
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module


@pytest.fixture(scope="module")
def path(tmp_path_factory):
    """The file that CONTRIBUTING.md shows."""
    section = (ROOT / "CONTRIBUTING.md").read_text("utf-8").split("## Adding a pattern family")[1]
    path = tmp_path_factory.mktemp("families") / "stranger.py"
    path.write_text(re.search(r"```python\n(.*?)```", section, re.DOTALL).group(1), "utf-8")
    return path


@pytest.fixture
def stranger(path):
    """The family; where the installation has it already, under another name."""
    family = loaded("stranger", path).FAMILY
    if family.name not in families.names():
        return family

    def build(context, budgets):
        return replace(family.build(context, budgets), pattern="stranger")

    return replace(family, name="stranger", look=replace(family.look, letter="Z"), build=build)


@pytest.fixture(params=["beside ours", "alone"])
def registered(request, stranger):
    """The family beside ours, and without them."""
    others = families.registered() if request.param == "beside ours" else ()
    with families.using(*others, stranger):
        yield


@pytest.fixture
def inputs(oracle):
    return oracle.draw_inputs(1, n_q=613, batch=2, key_start=[0, 137])


@pytest.fixture
def segment(oracle, inputs):
    return split(inputs.q.shape[2], inputs.k.shape[2], oracle.SMALL)[-1]


def test_the_library_and_its_words_know_the_family(segment, stranger):
    with families.using(*families.registered(), stranger):
        found = [c for c in library(segment) if c.pattern == stranger.name]
        assert [c.level for c in found] == list(range(len(stranger.budgets(segment))))
        assert found[0].budget == "local 32 tokens + one block in 16"
        assert library(segment)[-1].pattern == "dense"
    assert stranger.name not in {c.pattern for c in library(segment)}


def test_a_calibration_stays_valid_and_says_nothing_of_the_family(stranger):
    """It stamps the families that it was made with; one that it was made with must be here as it was."""
    config = RouterConfig()
    made = {"model_revision": "r", "library_hash": library_hash(), "stamp": artifact.stamp_of(config)}
    rest = (
        "buckets",
        "documents",
        "seed",
        "provenance",
        "name",
        "domain",
        "gate_threshold",
        "alpha",
        "model",
    )
    mine = artifact.Calibration(**made, **dict.fromkeys(rest, ()))
    ours = families.registered()
    for order in ((*ours, stranger), (stranger, *ours)):
        with families.using(*order):
            assert library_hash() != mine.library_hash
            assert stamped_families(mine.library_hash) == {family.name for family in ours}
            assert mine.mismatch("r", config) is None
            assert mine.covers(ours[0].name) and not mine.covers(stranger.name)
            theirs = replace(mine, library_hash=library_hash())
            assert theirs.covers(stranger.name)
    assert "pattern library" in theirs.mismatch("r", config)
    with families.using(*ours[1:], stranger):
        assert "pattern library" in mine.mismatch("r", config)


def test_its_index_is_its_definition_and_its_mass_that_of_the_plan(oracle, inputs, stranger, registered):
    """The retained mass by which it is chosen is the softmax mass of the keys that its plan reads."""
    segment, rows, probe, candidates, indices = oracle.step_one_and_two(inputs)
    context = Context(inputs, segment, candidates, probe)
    levels = indices[stranger.name].levels
    forced, causal = (x.expand(levels.shape)[:, 0] for x in context.forced_and_causal)
    weights = oracle.softmax(inputs)[0]
    found = candidate_mass(Context(inputs, segment, candidates, probe), indices)
    for budget in context.budgets(stranger.name):
        read = levels[:, 0] <= budget.level
        for i in range(segment.query_blocks):
            wanted = torch.zeros(segment.key_blocks, dtype=torch.bool)
            wanted[list(stranger.reads(context, budget, (0, 0), i))] = True
            assert torch.equal(read[:, i], wanted & causal[:, i] | forced[:, i])
        mask = oracle.plan_of_candidate(inputs, segment, candidates, indices, budget.index).to_mask()
        kept = (weights[:, :, segment.first :] * mask).sum(-1).gather(2, rows.rows)
        scored = found.row_mass[..., budget.index].double()
        torch.testing.assert_close(scored, kept, atol=1e-5, rtol=0)
        tiles = read[:, : segment.body_blocks].sum((1, 2))
        assert torch.equal(found.tiles[:, 0, budget.index].int(), tiles.int())


@pytest.fixture(scope="module")
def in_triton():
    with triton_process() as run:
        yield run


def decided(path, beside, kind, device):
    """A decision with the family, by whatever serves this process and device: fused_run.py's."""
    family = loaded("stranger", path).FAMILY
    others = [each for each in families.registered() if beside and each.name != family.name]
    with families.using(*others, family):
        policy = "priced" if beside else "certified"
        return fused_run.decide(kind, policy, device)


@pytest.mark.parametrize("beside", [True, False], ids=["beside ours", "alone"])
def test_the_kernels_decide_with_it_what_the_twins_decide(in_triton, path, beside):
    kind = {"n_q": 130, "batch": 2, "key_start": [0, 37], "heads": 2, "kv_heads": 1}
    wanted = decided(path, beside, kind, "cpu")
    found = in_triton(decided, path, beside, kind, "cuda" if torch.cuda.is_available() else "cpu")
    # A block whose score lies on a bin's edge may belong to either bin; the stranger's levels come last.
    ties = (found["levels"] != wanted["levels"]).float().mean()
    assert ties < 0.005 and torch.equal(found["levels"][-2:], wanted["levels"][-2:])
    for name in ("mass", "recent_mass", "disagreement", "density", "kernel_us"):
        near = 0.02 if ties else 3e-5
        torch.testing.assert_close(found[name], wanted[name], atol=near, rtol=1e-3, msg=name)
    for name in () if ties else ("choice", "keys", "pictures"):
        assert torch.equal(found[name], wanted[name]), name


def test_a_layer_chooses_it_and_runs_and_records_what_it_reads(oracle, inputs, segment, stranger):
    """With no other sparse family, every sparse unit is its own; packed masks hold an odd number of families."""
    with families.using(stranger):
        config = replace(oracle.SMALL, policy="certified", tau=0.05)
        decision = decide(inputs, segment, 0, LayerSettings(config, 0.1, oracle.PROFILE))
        chosen = {decision.candidates[c].pattern for c in decision.choice.flatten()}
        assert stranger.name in chosen <= {stranger.name, "dense"}
        plan = plan_of(decision, inputs).validate()
        pictures = draw(decision.probe, segment, decision.indices).leave().read()
    unit = int(np.flatnonzero(decision.sparse)[0])
    budget = decision.candidates[decision.choice.flatten()[unit]]
    keys = plan.to_mask().flatten(0, 1)[unit]
    picture = pictures[unit]
    shape = picture.masks.shape[1:]
    levels = probe_masks.decode(picture.masks.tobytes(), *shape, ["it"])["it"]
    blocks = torch.nn.functional.pad(keys, (0, -keys.shape[-1] % segment.block_k))
    read = blocks.unflatten(-1, (-1, segment.block_k)).any(-1).numpy()
    at = picture.positions - segment.position
    body = (at < segment.body) & ~plan.dense_rows.flatten(0, 1)[unit].numpy()[at // segment.block_q]
    first = int(inputs.first_keys()[unit // inputs.q.shape[1]])
    body &= picture.positions >= first
    assert body.sum() > 10
    np.testing.assert_array_equal(levels[body] <= budget.level, read[at[body]])


def test_a_layer_scores_it_beside_the_floor_at_a_price(oracle, inputs, segment, stranger):
    with families.using(*families.registered(), stranger):
        decision = decide(inputs, segment, 0, LayerSettings(oracle.SMALL, 0.0, oracle.PROFILE))
        plan_of(decision, inputs).validate()
        own = [c.index for c in decision.candidates if c.pattern == stranger.name]
    assert own and decision.certified.layer is not None
    assert np.isfinite(decision.scores.mass[:, own]).all()


def test_without_the_floor_there_is_no_price(oracle, inputs, segment, stranger):
    with families.using(stranger), pytest.raises(PatternError, match="needs the family 'floor'"):
        decide(inputs, segment, 0, LayerSettings(oracle.SMALL, 0.0, oracle.PROFILE))


def test_pages_show_it_and_one_that_they_do_not_know(stranger, registered):
    """A bundle of another version: its name, its initial, a neutral colour; never a KeyError."""
    pytest.importorskip("streamlit", reason="streamlit is not installed")
    from routesparse.app.ui import design

    assert design.letter(stranger.name) == stranger.look.letter
    assert families.in_order(["other"])[-3:] == [stranger.name, "other", "dense"]
    for theme in (design.LIGHT, design.DARK):
        assert theme.pattern(stranger.name) == theme.pattern("other")
        assert design.contrast(theme.pattern("other"), theme.panel) > 3
    assert (design.letter("other"), design.name("other")) == ("O", "other")
