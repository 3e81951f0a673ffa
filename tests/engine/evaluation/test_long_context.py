"""The study of longer contexts on the bundled model, at a scale that a CPU can run in seconds."""

import json

import pytest

from routesparse.engine import paths
from routesparse.engine.evaluation.studies import long_context, rope_search
from routesparse.engine.models.load import load_model


@pytest.mark.timeout(600)
def test_every_scaling_answers_the_same_prompts_by_both_prefills(tmp_path, monkeypatch):
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    haystack = tmp_path / "prose" / "test"
    haystack.mkdir(parents=True)
    (haystack / "1.txt").write_text((paths.DATA / "samples" / "prompts" / "prose.txt").read_text())
    out = tmp_path / "out.json"
    found = rope_search.Candidate(tuple(1 + place / 31 for place in range(32)), 1.05).request(512, 1536)
    searched = tmp_path / "searched.json"
    searched.write_text(json.dumps({"rope": found.values}))
    long_context.main(
        [
            *("--data", str(tmp_path), "--out", str(out), "--original", "1024", "--lengths", "1536"),
            *("--tasks", "niah_single_2", "--prompts", "1", "--seed", "3", "--trained", "768"),
            *("--searched", str(searched), "--scalings", *long_context.SCALINGS, "yarn_trained", "searched"),
        ]
    )
    result = json.loads(out.read_text())
    rows = {row["scaling"]: row for row in result["rows"]}
    assert set(rows) == {*long_context.SCALINGS, *long_context.MORE_SCALINGS}
    assert rows["none"]["rope"] is None and rows["none"]["revision"] == load_model().revision
    assert len({row["revision"] for row in rows.values()}) == 6
    for name, row in rows.items():
        assert (row["task"], row["tokens"], row["n"]) == ("niah_single_2", 1536, 1)
        assert 0 <= row["dense"] <= 100 and 0 < row["density"] <= 1
        if name in long_context.SCALINGS[1:]:
            asked = json.loads(row["rope"])
            assert (asked["rope_type"], asked["factor"]) == (name, 1.5)
    assert json.loads(rows["yarn_trained"]["rope"])["factor"] == 2.0
    assert rows["searched"]["rope"] == found.text
    # The needle is inside what the bundled model was trained on: as it is, it finds it with both prefills.
    assert rows["none"]["dense"] == rows["none"]["routed"] == 100


def test_the_factors_of_longrope_begin_at_one_and_end_at_the_whole_factor():
    asked = long_context.scaling("longrope", 4.0, 1024, 32).values
    assert asked["short_factor"] == [1.0] * 32
    assert asked["long_factor"][0] == pytest.approx(1.0) and asked["long_factor"][-1] == pytest.approx(4.0)
    assert asked["long_factor"] == sorted(asked["long_factor"])


@pytest.mark.parametrize("name", ["yarn_trained", "searched"])
def test_a_scaling_that_needs_more_says_so(name, tmp_path, capsys):
    with pytest.raises(SystemExit):
        long_context.main(["--out", str(tmp_path / "x.json"), "--scalings", name])
    assert f"--scalings {name} needs --{name.removeprefix('yarn_')}" in capsys.readouterr().err
