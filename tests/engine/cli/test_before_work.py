"""What can be known before the work is refused before a model is loaded, with the option that helps."""

import json
import re

import pytest


@pytest.fixture
def data(tmp_path, home):
    """One book, and two rows of one task."""
    row = {"input": "Who?", "context": "ledger " * 50, "answers": ["Ann"], "length": 1, "language": "en"}
    file = tmp_path / "data" / "benchmarks" / "longbench" / "hotpotqa.jsonl"
    file.parent.mkdir(parents=True)
    file.write_text(2 * (json.dumps(row) + "\n"))
    return tmp_path / "data"


@pytest.mark.parametrize(
    ("given", "told"),
    [
        (
            ("longbench", "--tasks", "hotpotqa", "--n", 3),
            "longbench has 2 prompts of hotpotqa in .*; pass --n 2",
        ),
        (("longbench", "--tasks", "hotpotqa,qmsum", "--n", 2), r"needs .*qmsum\.jsonl, which is not there"),
        (("longbench", "--tasks", "nothing"), "has no task 'nothing'"),
        (("stories",), r"holds no \*\.txt"),
        (("pg19",), "holds no books"),
        (("ruler", "--tasks", "qa_1"), "squad.json, which is not there"),
        (
            ("longbench", "--tasks", "hotpotqa", "--n", 2, "--out", "/dev/null/x"),
            "/dev/null is a file; pass a folder",
        ),
    ],
    ids=["n", "file", "task", "texts", "books", "questions", "out"],
)
def test_evaluate_makes_no_prompt_where_the_last_one_cannot_be_made(run, data, tmp_path, given, told):
    code, out, err = run("evaluate", *given, "--data", data, "--lengths", 2048)
    assert (code, out) == (2, "")
    assert re.search(told, " ".join(err.split())), err
    assert not list(tmp_path.glob("home/evaluations/*/prompts/*/*"))


@pytest.mark.parametrize(
    "command", [("profile", "--prompts", "none"), ("bench", "kernel", "--out", "/dev/null/x.json")]
)
def test_missing_texts_and_folders_are_named_first(run, data, command):
    code, out, err = run(*command)
    assert (code, out) == (2, "") and ("does not exist" in err or "is a file" in err)
