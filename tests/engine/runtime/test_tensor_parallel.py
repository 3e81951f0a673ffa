"""Two processes share a tiny Llama's heads; CPU, gloo, started once for the module by torchrun."""

import json
from pathlib import Path
from types import SimpleNamespace

import pytest

from routesparse.engine.errors import UnsupportedModelError
from routesparse.engine.runtime.tensor_parallel import ranks_of
from routesparse.engine.store.bundle import read_bundle

PROCESSES = 2
HEADS = 8


@pytest.fixture(scope="module")
def ranks(tmp_path_factory, torchrun):
    """What each process found (rank_runs.py)."""
    out = tmp_path_factory.mktemp("ranks")
    return torchrun("rank_runs.py", PROCESSES, out, out / "home")


def heads_of(rank):
    return range(rank * HEADS // PROCESSES, (rank + 1) * HEADS // PROCESSES)


def test_at_full_budget_the_logits_are_those_of_the_dense_model(ranks):
    for found in ranks:
        assert found["parity"]["unrouted_difference"] < 1e-4
        assert found["parity"]["full_difference"] < 1e-4


@pytest.mark.parametrize("budget", ["full", "priced"])
def test_each_head_is_routed_as_in_a_single_process(ranks, budget):
    for rank, found in enumerate(ranks):
        one = found["parity"][budget]
        assert one["difference"] < 1e-4
        own, alone = (_without_ties(one[name], budget) for name in ("own", "alone"))
        assert own == [choice for choice in alone if choice[1] in heads_of(rank)]
        assert len(alone) == 2 * HEADS
        assert (one["density"] < 0.7) == (budget == "priced")


def _without_ties(choices, budget):
    """At full budget several floors read everything; rounding decides which of them a head takes."""
    if budget == "priced":
        return choices
    assert all(mass == 1.0 for *_, mass, _ in choices)
    return [[*unit, pattern, lower] for *unit, pattern, _, _, lower in choices]


def test_the_first_process_has_one_record_of_all_heads(ranks):
    first, *others = (found["parity"] for found in ranks)
    assert all(found["priced"]["all"] is None for found in others)
    assert first["priced"]["all"] == first["priced"]["alone"]
    record = read_bundle(Path(first["priced"]["bundle"]))
    run, config = record.run, json.loads(record.run.config_json)
    assert (run.heads, run.kv_heads, run.layers, run.units) == (HEADS, 4, 2, 2 * HEADS)
    assert config["ranks"] == PROCESSES and config["rank_load"] >= 1
    assert {(probe.layer, probe.head) for probe in record.probes} == {
        (layer, head) for layer in range(2) for head in range(HEADS)
    }
    assert "record_of_all_ranks" in first["own_record"]


def test_salt_and_latency_profile_are_those_of_the_first_process(ranks):
    assert ranks[0]["parity"]["shared"] == ranks[1]["parity"]["shared"]


def test_heads_that_cannot_be_split_are_refused_before_anybody_waits(ranks):
    expected = "UnsupportedModelError: 1 KV heads can't be split over 2 processes; start as many as divide 1"
    assert [found["refused"]["error"] for found in ranks] == [expected] * PROCESSES


def test_an_error_in_one_process_is_raised_in_all_and_the_next_prompt_is_served(ranks):
    for found in ranks:
        poisoned = found["poisoned"]
        assert poisoned["error"].startswith("RankError: rank 1 of 2 failed: NumericsError: layer 1: NaN")
        assert poisoned["prompts"] == 0 and poisoned["afterwards"] == HEADS


def test_a_process_that_leaves_the_block_by_an_error_ends_the_others(ranks):
    first, last = (found["left"] for found in ranks)
    assert last["error"].startswith("KeyError")
    assert first["error"] == "RankError: rank 1 of 2 failed: " + last["error"]


def test_another_parallelism_is_refused_though_its_mesh_has_no_names():
    """As transformers made it before 5.18."""
    mesh = SimpleNamespace(size=lambda: 2, ndim=1, shape=(2,), mesh_dim_names=None)
    with pytest.raises(UnsupportedModelError, match=r"mesh of shape \{0: 2\}; only tensor parallelism"):
        ranks_of(SimpleNamespace(_device_mesh=mesh, _tp_size=1))
