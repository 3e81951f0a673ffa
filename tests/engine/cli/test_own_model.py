"""The guide "Your own model in ten minutes" of engine/README.md, line by line on a tiny model. CPU."""

import random
import re
import shlex
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[3]
GUIDE = (ROOT / "engine" / "README.md").read_text().split("### Your own model in ten minutes\n", 1)[1]
LINES = re.findall(r"^\.venv/bin/routesparse (.+)$", GUIDE.split("\n### ", 1)[0], flags=re.MULTILINE)
# The tiny model reads 1,000 tokens, so everything is smaller; and what is chosen must not depend on today's load.
SMALLER = {
    "doctor": (),
    "profile": ("--quick",),
    "analyze": ("--break-even", "0"),
    "tune": (
        *("--tokens", "600", "--windows", "6", "--prices", "0.5,0.25"),
        *("--confidence", "0.6", "--target", "kl=5"),
    ),
    "calibrate": ("--fold-a", "4", "--fold-b", "4", "--tokens", "520", "600", "--audit-rows", "64"),
}


@pytest.fixture(scope="module")
def model(tiny_model, tmp_path_factory):
    return tiny_model.save_profiled(tmp_path_factory.mktemp("own"))


def test_every_line_of_the_guide_runs_in_its_order(run, model, home, tmp_path, monkeypatch):
    folder = tmp_path / "texts"
    folder.mkdir()
    words = ("the", "quick", "brown", "fox", "jumps", "over", "a", "lazy", "dog", "while")
    for number in range(4):
        rng = random.Random(number)
        (folder / f"{number}.txt").write_text(" ".join(rng.choices(words, k=400)))
    prompt = " ".join(random.Random("prompt").choices(words, k=400))[:560]
    (tmp_path / "prompt.txt").write_text(prompt)
    monkeypatch.chdir(tmp_path)
    assert [line.split()[0] for line in LINES] == [
        *("doctor", "profile", "analyze", "tune", "calibrate", "analyze")
    ]
    told = []
    for line in LINES:
        words_given = [str(model) if word == "MODEL" else word for word in shlex.split(line)]
        code, out, err = run(*words_given, *SMALLER[words_given[0]])
        assert code == 0, (line, err)
        told.append(out + err)
    assert (home / "calibrations" / "mine.json").is_file()
    assert (home / "calibrations" / "tuned" / "mine-kl.json").is_file()
    assert "mine-kl: price" in " ".join(told[-1].split()) and "promises nothing here" not in told[-1]
    assert len(list((home / "spool").glob("*/manifest.json"))) == 2
