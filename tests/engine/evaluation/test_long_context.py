"""The study of longer contexts on the bundled model, at a scale that a CPU can run in seconds."""

import json

import pytest

from routesparse.engine import paths
from routesparse.engine.evaluation.studies import long_context
from routesparse.engine.models.load import load_model


@pytest.mark.timeout(600)
def test_every_scaling_answers_the_same_prompts_by_both_prefills(tmp_path, monkeypatch):
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    haystack = tmp_path / "prose" / "test"
    haystack.mkdir(parents=True)
    (haystack / "1.txt").write_text((paths.DATA / "samples" / "prompts" / "prose.txt").read_text())
    out = tmp_path / "out.json"
    long_context.main(
        [
            *("--data", str(tmp_path), "--out", str(out), "--original", "1024", "--lengths", "1536"),
            *("--tasks", "niah_single_2", "--prompts", "1", "--seed", "3"),
        ]
    )
    result = json.loads(out.read_text())
    rows = {row["scaling"]: row for row in result["rows"]}
    assert set(rows) == set(long_context.SCALINGS)
    assert rows["none"]["rope"] is None and rows["none"]["revision"] == load_model().revision
    assert len({row["revision"] for row in rows.values()}) == 4
    for name, row in rows.items():
        assert (row["task"], row["tokens"], row["n"]) == ("niah_single_2", 1536, 1)
        assert 0 <= row["dense"] <= 100 and 0 < row["density"] <= 1
        if name != "none":
            asked = json.loads(row["rope"])
            assert (asked["rope_type"], asked["factor"]) == (name, 1.5)
    # The needle is inside what the bundled model was trained on: as it is, it finds it with both prefills.
    assert rows["none"]["dense"] == rows["none"]["routed"] == 100


def test_the_factors_of_longrope_begin_at_one_and_end_at_the_whole_factor():
    asked = long_context.scaling("longrope", 4.0, 1024, 32).values
    assert asked["short_factor"] == [1.0] * 32
    assert asked["long_factor"][0] == pytest.approx(1.0) and asked["long_factor"][-1] == pytest.approx(4.0)
    assert asked["long_factor"] == sorted(asked["long_factor"])
