"""``routesparse calibrate``: from text files to a calibration that analyze accepts; one line per error. CPU."""

import json
import random

import pytest
import torch

from routesparse.engine.calibration.artifact import load_calibration
from routesparse.engine.calibration.folders import length_buckets
from routesparse.engine.errors import InputError

WORDS = (
    "the",
    "quick",
    "brown",
    "fox",
    "jumps",
    "over",
    "a",
    "lazy",
    "dog",
    "while",
    "wizards",
    "draw",
    "jugs",
)


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    """A tiny saved model with one token per byte, and a home with a latency profile that fits it."""
    return tiny_model.save_profiled(tmp_path_factory.mktemp("calibrate"))


@pytest.fixture
def texts(tmp_path):
    """Two folders of four documents each."""
    for group in ("one", "other"):
        (tmp_path / group).mkdir()
        for number in range(4):
            rng = random.Random(f"{group}{number}")
            (tmp_path / group / f"{number}.txt").write_text(" ".join(rng.choices(WORDS, k=400)))
    return tmp_path


SMALL = ("--fold-a", 4, "--fold-b", 4, "--tokens", 520, 600, "--tau", 0.2, "--audit-rows", 64)


def test_several_folders_are_groups_and_robust_is_told(run, model, home, texts):
    arguments = ("calibrate", model, texts / "one", texts / "other", "--domain", "both", *SMALL)
    code, out, err = run(*arguments, "--robust")
    assert code == 0, err
    made = load_calibration("both")
    assert made.parts == ("one", "other") and made.provenance["robust"] is True
    assert "lambda" in out and "both.json" in out


def test_several_processes_make_the_calibration_of_one_bit_for_bit(run, model, home, texts, monkeypatch):
    """Each with as many threads as one, on which a CPU's sums depend."""
    monkeypatch.setenv("OMP_NUM_THREADS", str(torch.get_num_threads()))
    made = {}
    for name, more in (("one", ()), ("two", ("--processes", 2))):
        code, out, err = run("calibrate", model, texts / "one", "--domain", name, *SMALL, *more, "--json")
        assert code == 0, err
        told = json.loads(out)
        assert told["path"] == str(home / "calibrations" / f"{name}.json")
        assert told["documents"] == {"A": 2, "B": 2} and load_calibration(name).overlap() == []
        values = json.loads((home / "calibrations" / f"{name}.json").read_text())
        values["provenance"].pop("created_at")
        made[name] = values | {"name": "", "domain": ""}
    assert "fold B 4/4" in err and made["one"]["prompts"] and made["one"] == made["two"]


@pytest.mark.parametrize(
    ("change", "told"),
    [
        (("--domain", "a/b"), "'a/b' is no name"),
        (("--domain", "prose"), "calibration 'prose' is bundled"),
        (("--domain", "x", "--out", "x.txt"), "x.txt is no .json file"),
        (("--domain", "x", "--tokens", 900, 600), "tokens 900 600 is no range"),
        (("--domain", "x", "--fold-b", 0), "are too small"),
        (("--domain", "x", "--processes", 0), "--processes 0 does nothing"),
        (("--domain", "x", "--tokens", 520, 9_000_000), "longer than the model reads"),
    ],
)
def test_wrong_input_is_one_line_and_exit_code_2(refused, model, home, texts, change, told):
    assert told in refused("calibrate", model, texts / "one", *change)


def test_one_document_makes_no_two_folds(refused, model, home, texts):
    told = refused("calibrate", model, texts / "one" / "0.txt", "--domain", "x", "--tokens", 520, 600)
    assert "1 of 1 documents have the 520 tokens of the shortest prompt, the longest has" in told


def test_buckets_double_and_end_at_the_longest():
    assert length_buckets(4_096, 16_384) == [(4_096, 8_192), (8_193, 16_384)]
    assert length_buckets(4_096, 10_000) == [(4_096, 8_192), (8_193, 10_000)]
    assert length_buckets(600, 600) == [(600, 600)]
    with pytest.raises(InputError):
        length_buckets(100, 600)
