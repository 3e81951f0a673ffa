import json

import psutil

from routesparse.engine.lab.studies import prefill


def test_dense_and_routed_prefills_run_in_turn_and_say_what_was_read(tiny_model, tmp_path):
    model = tiny_model.save(tmp_path / "tiny")
    for domain in ("prose", "code"):
        (tmp_path / "data" / domain / "test").mkdir(parents=True)
        (tmp_path / "data" / domain / "test" / "a.txt").write_text(f"some {domain} of a line\n" * 120)
    told = ["--model", str(model), "--data", str(tmp_path / "data"), "--out", str(tmp_path / "prefill.json")]
    prefill.main(
        [*told, "--lengths", "700", "--batch", "2", "--prices", "1", "--repeats", "2", "--beside", "1"]
    )
    found = json.loads((tmp_path / "prefill.json").read_text())
    assert found["model"] == "tiny" and [row["domain"] for row in found["rows"]] == ["prose", "code"]
    assert not any("while True: pass" in child.cmdline() for child in psutil.Process().children())
    for row in found["rows"]:
        assert {name: len(of) for name, of in row["ms"].items()} == {"sdpa": 2, "price 1": 2}
        assert 0 < row["area"]["price 1"] <= 1 and min(row["first_ms"].values()) > 0
        assert 0 < sum(row["parts"]["price 1"].values()) < 2 * max(row["ms"]["price 1"])
        assert row["beside"] == 1
