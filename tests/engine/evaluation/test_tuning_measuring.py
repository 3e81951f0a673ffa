"""The measuring half of ``routesparse tune``: a tiny model on the CPU, no GPU."""

import json

import numpy as np
import pytest

from routesparse.engine.calibrate.prompts import Document, draw
from routesparse.engine.errors import CalibrationError, ConfigError
from routesparse.engine.evaluation.studies import tuning, tuning_windows
from routesparse.engine.evaluation.studies.selection import rows


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
    return [row for row in rows.read_lines(path) if "price" in row]


def run(folder, data, out, *more):
    shared = ("--model", str(folder), "--data", str(data), "--out", str(out), "--domains", "code")
    tuning.main([*shared, "--tokens", "600", "--windows", "2", *more])


def test_windows_take_clusters_alike_and_more_of_them_keep_the_first(loaded, data):
    documents, of = tuning_windows.read_split(data, "code", "calibration", loaded.tokenizer)
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
        assert row["kl"] >= 0 and 0 <= row["agreement"] <= 1 and 0 < row["area"] <= 1
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


def test_a_price_outside_its_range_ends_the_run_before_anything_is_loaded(tmp_path):
    with pytest.raises(ConfigError, match="price 0 must lie in"):
        tuning.main(["--out", str(tmp_path / "x.jsonl"), "--prices", "0"])
