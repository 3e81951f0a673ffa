"""The search of LongRoPE's factors: candidates, their losses, and what it leaves. CPU, tiny model."""

import argparse
import json
import time

import numpy as np
import pytest
import torch

from routesparse.engine.errors import ConfigError, InputError, ModelError
from routesparse.engine.evaluation.studies import rope_search
from routesparse.engine.evaluation.studies.rope_search import Candidate, Losses, Search
from routesparse.engine.models.load import load_model

ASKED = argparse.Namespace(seed=3, step=0.3, rounds=4, trained=64, tokens=256)


def test_a_candidate_s_loss_is_that_of_the_model_loaded_with_its_request(loaded, folder):
    ids = torch.randint(3, 250, (256,), generator=torch.Generator().manual_seed(1)).tolist()
    losses = Losses(loaded, ASKED.trained)
    (pairs,) = loaded.model.model.rotary_emb.inv_freq.shape
    candidate = Candidate(tuple(np.linspace(1, 5, pairs).round(4).tolist()), 1.25)
    plain = losses(Candidate((1.0,) * pairs, 1.0), ids)
    again = load_model(str(folder), device="cpu", rope=candidate.request(ASKED.trained, 256))
    with torch.no_grad():
        log_p = again.model(torch.tensor([ids])).logits[0].float().log_softmax(-1)
    expected = -log_p[63:-1].gather(-1, torch.tensor(ids[64:])[:, None]).mean()
    assert losses(candidate, ids) == pytest.approx(float(expected), rel=1e-5)
    assert losses(candidate, ids) != pytest.approx(plain, rel=1e-3)
    assert losses(Candidate((1.0,) * pairs, 1.0), ids) == plain, "the model is left as it was"
    with pytest.raises(ModelError, match="no plain rotary positions"):
        Losses(again, ASKED.trained)


def test_the_starting_points_are_transformers_own(loaded):
    made = rope_search.starts(loaded, 64, 256)
    assert list(made) == ["as trained", "Position Interpolation", "NTK-aware", "YaRN"]
    assert set(made["Position Interpolation"].factors) == {4.0}
    assert made["NTK-aware"].factors[0] == 1 and made["NTK-aware"].factors[-1] == 4
    yarn = made["YaRN"]
    assert yarn.factors[0] == 1 and yarn.factors[-1] == 4 and list(yarn.factors) == sorted(yarn.factors)
    assert yarn.attention == pytest.approx(0.1 * np.log(4) + 1, abs=1e-4)
    longer = loaded.max_tokens * 2
    assert "YaRN, the file's context" in rope_search.starts(loaded, 64, longer)


def test_a_search_keeps_factors_in_order_and_within_bounds_and_finds_a_minimum_it_is_shown():
    wanted = np.array([1.0, 1.5, 3.0, 4.5])

    def cost(one):
        return float(np.abs(np.array(one.factors) - wanted).sum() + abs(one.attention - 1.2))

    begun = {"as trained": Candidate((1.0,) * 4, 1.0), "flat": Candidate((4.0,) * 4, 1.0)}
    search = Search(begun, cost, argparse.Namespace(**{**vars(ASKED), "rounds": 60}))
    *_, tried = search.rounds(float("inf"))
    assert tried == len(search.cost) > 200
    assert all(list(one.factors) == sorted(one.factors) for one in search.cost)
    assert all(1 <= f <= 5 for one in search.cost for f in one.factors)
    assert cost(search.best) < 0.25 * min(cost(one) for one in begun.values())
    told = search.told()
    assert told["nats"] == min(cost for _, cost in told["tried"]) and told["starts"]["flat"] == cost(
        begun["flat"]
    )


def test_no_round_begins_behind_the_deadline():
    search = Search({"one": Candidate((1.0, 2.0), 1.0)}, lambda one: sum(one.factors), ASKED)
    assert list(search.rounds(time.time() - 1)) == [1] and search.best == Candidate((1.0, 2.0), 1.0)


def test_the_command_leaves_a_scaling_that_a_model_loads_with(folder, tmp_path):
    texts = tmp_path / "prose" / "calibration"
    texts.mkdir(parents=True)
    (texts / "1.txt").write_text("the lazy dog sees a fox " * 40)
    out = tmp_path / "search.json"
    call = [
        "--model",
        str(folder),
        "--data",
        str(tmp_path),
        "--out",
        str(out),
        "--trained",
        "64",
        "--rounds",
        "1",
    ]
    rope_search.main([*call, "--tokens", "256"])
    found = json.loads(out.read_text())
    assert found["documents"] == ["1"] and found["positions"] == 192 and len(found["tried"]) >= 8
    assert found["nats"] == min(nats for _, nats in found["tried"])
    names = [(one["name"], one["tokens"]) for one in found["held_out"]]
    assert names.count(("searched", 256)) == names.count(("searched", 128)) == 1 and len(names) == 10
    assert all(len(one["nats"]) == 2 for one in found["held_out"]), "--held-out, of three windows"
    read = rope_search.read_scaling(out)
    assert read.values["factor"] == 4.0 and load_model(str(folder), device="cpu", rope=read).rope == read.text
    with pytest.raises(InputError, match="pass --tokens of at most half"):
        rope_search.main([*call, "--tokens", "900"])


@pytest.mark.parametrize(("text", "told"), [("[1]", "holds no scaling"), ("{", "can't be read")])
def test_a_file_without_a_scaling_is_refused(tmp_path, text, told):
    (tmp_path / "x.json").write_text(text)
    with pytest.raises((ConfigError, InputError), match=told):
        rope_search.read_scaling(tmp_path / "x.json")
