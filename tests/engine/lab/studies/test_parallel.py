"""One process's half of the study, and the comparison; two processes are run by hand (PARALLEL.md). CPU, gloo."""

import json

import torch

from routesparse.engine.lab.studies import parallel

SHAPE = {"hidden_size": 256, "num_attention_heads": 4, "num_key_value_heads": 2, "num_hidden_layers": 2}
TOLD = ["--random", json.dumps({**SHAPE, "intermediate_size": 64, "vocab_size": 50}), "--repeats", "1"]


def test_one_process_leaves_what_several_are_compared_with(tmp_path, monkeypatch):
    for name, value in {"RANK": 0, "WORLD_SIZE": 1, "MASTER_ADDR": "127.0.0.1", "MASTER_PORT": 0}.items():
        monkeypatch.setenv(name, str(value))
    monkeypatch.setattr(parallel, "PROCESSES", 1)
    files = ["--reference", str(tmp_path / "1.pt"), "--out", str(tmp_path / "1.json")]
    parallel.main([*TOLD, *files, "--tokens", "4096"])
    (row,) = json.loads((tmp_path / "1.json").read_text())["rows"]
    assert row["full_to_unrouted"]["largest"] < 1e-4 < row["routed_to_unrouted"]["largest"]
    assert 0 < row["area"] < 1 and row["rank_load"] is None
    one = torch.load(tmp_path / "1.pt")[4096]
    same = parallel.compared(one, one)
    assert same["routed_to_one"] == {"largest": 0, "kl": 0, "same_token": True}
    assert same["equal_choices"] == same["equal_areas"] == 1 and set(same["one_over_these"].values()) == {1}
    _, budget, area = one["choices"][0, 3, 0]
    two = {
        "ms": {arm: [2 * ms for ms in of] for arm, of in one["ms"].items()},
        "unrouted": one["unrouted"],
        "routed": one["unrouted"],
        "choices": one["choices"] | {(0, 3, 0): ("dense", budget, area + 0.08)},
    }
    other = parallel.compared(one, two)
    assert set(other["one_over_these"].values()) == {0.5} and other["routed_to_one"]["kl"] > 0
    assert (
        other["equal_choices"] == other["equal_areas"] == 7 / 8 and round(other["area_difference"], 9) == 0.01
    )
