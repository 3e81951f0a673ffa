"""The windows that a price is tuned on, and the rows that measuring them leaves. A tiny model on the CPU, no GPU."""

import json
from dataclasses import replace

import numpy as np
import pytest

from routesparse.engine.calibrate import one_profile, tuning_windows
from routesparse.engine.calibrate.prompts import Document, document_groups, draw
from routesparse.engine.calibrate.row_files import read_lines
from routesparse.engine.crew.crews import Processes
from routesparse.engine.crew.share import Team
from routesparse.engine.errors import CalibrationError, ConfigError

PROJECTS = {"a-0": "org/a", "a-1": "org/a", "b-0": "org/b"}  # one of them in two pieces


@pytest.fixture
def windows(loaded):
    """windows(count, seed) of 600 tokens of two projects."""
    draws = np.random.default_rng(0)
    documents = [Document("code", name, name, draws.integers(0, 250, 1_500)) for name in PROJECTS]

    def make(count, seed=0):
        return tuning_windows.draw_windows(documents, PROJECTS, 600, count, loaded.tokenizer, seed)

    return make


def test_windows_take_clusters_alike_and_more_of_them_keep_the_first(windows):
    few, many = windows(3), windows(40)
    assert [(d.cluster, d.index) for d in few] == [("org/a", 0), ("org/b", 0), ("org/a", 1), ("org/b", 1)]
    assert many[:4] == few and len(many) == 40
    assert {d.window.document for d in many} == {"a-0", "a-1", "b-0"}
    assert windows(4, 1) != few


def test_windows_are_drawn_uniformly_and_short_documents_give_half_ones(loaded):
    long, short = (Document("x", name, name, np.arange(size)) for name, size in (("l", 1_000), ("s", 60)))
    found = draw([long, short], 2_000, 101, loaded.tokenizer, "seed")
    lengths = {w.document: w.tokens for w in found}
    assert lengths == {"l": 101, "s": 50}
    assert abs(sum(w.document == "s" for w in found) - 1_000) < 120
    starts = [w.start for w in found if w.document == "l"]
    assert min(starts) < 20 and max(starts) > 880 and abs(np.mean(starts) - 450) < 40
    assert {w.start for w in found if w.document == "s"} == set(range(12))
    with pytest.raises(CalibrationError, match="no document holds 500 tokens"):
        draw([short], 2, 1_000, loaded.tokenizer, "seed")


def test_all_processes_route_by_the_profile_that_the_first_one_measured(
    folder, windows, tmp_path, monkeypatch
):
    """In a home without one; it is taken away again, so that a process that looks for its own would leave one."""
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    profiles, said = tmp_path / "home" / "profiles", []
    opened = tuning_windows.Asked(str(folder), None, 0, "calibration", 600, "command").opened
    crew, count = Processes(2).crew(opened)
    with Team(crew, count, said.append) as team:
        first = one_profile.ask(team, opened)
        (file,) = profiles.glob("*.json")
        assert first.profiles["exact"].name == file.stem and file.stem in one_profile.named(first.profiles)
        file.unlink()
        outcome = tuning_windows.append(team, opened, windows(4), [0.5], first, tmp_path / "rows.jsonl")
    assert outcome.done == 4 and outcome.failed == {} and not list(profiles.glob("*.json"))
    assert sum("price" in row for _, row in read_lines(tmp_path / "rows.jsonl")) == 4
    other = replace(first, profiles={"exact": replace(first.profiles["exact"], tile_us=1.0)})
    with pytest.raises(ConfigError, match="measured with another profile"):
        tuning_windows.append(team, opened, windows(4), [0.5], other, tmp_path / "rows.jsonl")


def test_an_edited_text_is_measured_again_and_a_result_that_is_no_number_is_a_failure(windows, tmp_path):
    drawn = windows(2)[0]
    about = {"model": "m", "split": "test", "seed": 0, "device": "cpu", "git_commit": None}
    first = one_profile.First({}, about)

    class Made:
        def lost(self, text, options):
            kl = float("nan") if options["price"] == 0.5 else 0.1
            return {"kl": kl, "agree": 1.0, "nats": 3.0, "nats_dense": 3.0, "area": 0.5}

        def forget(self):
            pass

    found = tuning_windows.Measuring(Made(), about)((drawn, (0.25, 0.5)))
    assert found[0]["kl"] == 0.1 and "kl" not in found[1] and found[1]["failed"] == "not finite: kl"
    path = tmp_path / "rows.jsonl"
    path.write_text("".join(json.dumps(row) + "\n" for row in found))
    edited = replace(drawn, window=replace(drawn.window, token_ids=drawn.window.token_ids[::-1]))
    asked = []

    class Noted:
        def do(self, work):
            asked.extend(piece.given.given for lot in work.lots for piece in lot)

    tuning_windows.append(Noted(), None, [drawn, edited], [0.25, 0.5], first, path)
    assert asked == [(drawn, (0.5,)), (edited, (0.25, 0.5))]


def test_one_text_under_two_names_and_two_folders_of_one_name_are_refused(loaded, tmp_path):
    for name in ("a/x", "b/x"):
        (tmp_path / name).mkdir(parents=True)
        (tmp_path / name / "1.txt").write_text(name)
    with pytest.raises(CalibrationError, match="two groups of prompts are called 'x'"):
        document_groups([tmp_path / "a" / "x", tmp_path / "b" / "x"], "all", loaded.tokenizer)
    with pytest.raises(CalibrationError, match="two groups of prompts are called 'x'"):
        document_groups([tmp_path / "a" / "x", tmp_path / "b" / "x" / "1.txt"], "x", loaded.tokenizer)
    (tmp_path / "a" / "x" / "2.txt").write_text("a/x")
    with pytest.raises(CalibrationError, match="documents '1' and '2' are the same text"):
        document_groups([tmp_path / "a" / "x"], "x", loaded.tokenizer)
