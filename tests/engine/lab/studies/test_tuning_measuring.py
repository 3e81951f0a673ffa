"""The measuring half of ``routesparse tune``: a tiny model on the CPU, no GPU."""

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
from routesparse.engine.lab.studies import tuning
from routesparse.engine.models.load import load_tokenizer


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    """Two projects of code, one of them in two pieces."""
    made = tmp_path_factory.mktemp("data")
    folder = made / "code" / "calibration"
    folder.mkdir(parents=True)
    manifest = []
    for name, project in (("a-0", "org/a"), ("a-1", "org/a"), ("b-0", "org/b (lib)")):
        words = " ".join(name[0] * (1 + (7 * i) % 5) for i in range(600))
        (folder / f"{name}.txt").write_text(words)
        manifest.append({"domain": "code", "path": f"code/calibration/{name}.txt", "source_repo": project})
    (made / "manifest.jsonl").write_text("\n".join(map(json.dumps, manifest)))
    return made


def measured(path):
    return [row for _, row in read_lines(path) if "price" in row]


def run(folder, data, out, *more):
    shared = ("--model", str(folder), "--data", str(data), "--out", str(out), "--domains", "code")
    tuning.main([*shared, "--tokens", "600", "--windows", "2", *more])


def test_windows_take_clusters_alike_and_more_of_them_keep_the_first(loaded, data):
    documents, of = tuning.read_split(data, "code", "calibration", loaded.tokenizer)
    assert of == {"a-0": "org/a", "a-1": "org/a", "b-0": "org/b"}
    few, many = (tuning_windows.draw_windows(documents, of, 600, n, loaded.tokenizer, 0) for n in (3, 40))
    assert [(d.cluster, d.index) for d in few] == [("org/a", 0), ("org/b", 0), ("org/a", 1), ("org/b", 1)]
    assert many[:4] == few and len(many) == 40
    assert {d.window.document for d in many} == {"a-0", "a-1", "b-0"}
    assert tuning_windows.draw_windows(documents, of, 600, 4, loaded.tokenizer, 1) != few


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


def test_measuring_goes_on_where_it_was_cut_off_and_refuses_another_setting(folder, data, tmp_path):
    out = tmp_path / "rows.jsonl"
    run(folder, data, out, "--prices", "1", "0.25")
    first = measured(out)
    wanted = [("org/a", 0.25), ("org/a", 1.0), ("org/b", 0.25), ("org/b", 1.0)]
    assert [(row["cluster"], row["price"]) for row in first] == wanted
    for row in first:
        # Where all is read, what is left of the divergence is rounding, of either sign.
        assert row["kl"] > -1e-6 and 0 <= row["agreement"] <= 1 and 0 < row["area"] <= 1
        assert row["tokens"] == 600 and row["positions"] == 599 and row["split"] == "calibration"
        assert {"model", "document", "document_sha256", "start", "sha256", "device", "commit"} <= row.keys()
    # A torn last line is measured again, and nothing else.
    text = out.read_text()
    out.write_text(text[: text.rindex('"kl"')])
    run(folder, data, out, "--prices", "1", "0.25")
    again = measured(out)
    assert len(again) == 4 and again[-1]["kl"] == pytest.approx(first[-1]["kl"], rel=1e-4)
    with pytest.raises(ConfigError, match="another tokens; pass another --out"):
        run(folder, data, out, "--tokens", "700")


def test_all_processes_route_by_the_profile_that_the_first_one_measured(folder, data, tmp_path, monkeypatch):
    """In a home without one; it is taken away again, so that a process that looks for its own would leave one."""
    monkeypatch.setenv("ROUTESPARSE_HOME", str(tmp_path / "home"))
    profiles, said = tmp_path / "home" / "profiles", []
    documents, of = tuning.read_split(data, "code", "calibration", load_tokenizer(str(folder)).tokenizer)
    windows = tuning_windows.draw_windows(documents, of, 600, 4, load_tokenizer(str(folder)).tokenizer, 0)
    opened = tuning_windows.Asked(str(folder), None, 0, "calibration", 600, "command").opened
    crew, count = Processes(2).crew(opened)
    with Team(crew, count, said.append) as team:
        first = one_profile.ask(team, opened)
        (file,) = profiles.glob("*.json")
        assert first.profiles["exact"].name == file.stem and file.stem in one_profile.named(first.profiles)
        file.unlink()
        outcome = tuning_windows.append(team, opened, windows, [0.5], first, tmp_path / "rows.jsonl")
    assert outcome.done == 4 and outcome.failed == {} and not list(profiles.glob("*.json"))
    assert len(measured(tmp_path / "rows.jsonl")) == 4
    other = replace(first, profiles={"exact": replace(first.profiles["exact"], tile_us=1.0)})
    with pytest.raises(ConfigError, match="measured with another profile"):
        tuning_windows.append(team, opened, windows, [0.5], other, tmp_path / "rows.jsonl")


def test_a_limit_shorter_than_the_load_ends_in_words(folder, data, tmp_path, capsys):
    run(folder, data, tmp_path / "rows.jsonl", "--limit-s", "0")
    assert "out of time" in capsys.readouterr().err and not (tmp_path / "rows.jsonl").exists()


def test_an_edited_text_is_measured_again_and_a_result_that_is_no_number_is_a_failure(loaded, data, tmp_path):
    documents, of = tuning.read_split(data, "code", "calibration", loaded.tokenizer)
    drawn = tuning_windows.draw_windows(documents, of, 600, 2, loaded.tokenizer, 0)[0]
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


def test_files_of_questions_are_measured_whole_in_place_of_texts(folder, tmp_path, data):
    lot = tmp_path / "long" / "counts.jsonl"
    lot.parent.mkdir()
    lot.write_text(
        "\n".join(
            json.dumps({"prompt": f"{n} " * 200, "answer": f"{n}", "document": f"d{n}"}) for n in range(3)
        )
    )
    out = tmp_path / "rows.jsonl"
    run(folder, data, out, "--prices", "1", "--questions", str(lot), "--processes", "1", "--split", "test")
    found = measured(out)
    assert [(row["domain"], row["cluster"], row["split"]) for row in found] == [
        ("counts", f"d{n}", "test") for n in range(3)
    ]
    assert all(row["answer_tokens"] >= 1 and row["tokens"] > 200 for row in found)
    with pytest.raises(CalibrationError, match="larger --tokens"):
        run(folder, data, tmp_path / "no.jsonl", "--questions", str(lot), "--tokens", "100")
