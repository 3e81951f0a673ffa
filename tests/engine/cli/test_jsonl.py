"""``analyze`` and ``calibrate`` on .jsonl files, which they read as New run does. CPU, a tiny model."""

import json

import pytest

from routesparse.engine.calibrate.prompts import read_documents
from routesparse.engine.models.load import load_tokenizer
from routesparse.engine.store.bundle import read_bundle

QUESTION = {"role": "user", "content": "Who signed for the crate? " * 20}


@pytest.fixture
def rows(tmp_path, home):
    """Write rows to a file."""

    def write(*values):
        (tmp_path / "rows.jsonl").write_text("".join(json.dumps(value) + "\n" for value in values))
        return tmp_path / "rows.jsonl"

    return write


def test_messages_are_read_through_the_models_own_template(printed, rows, tiny_model, tmp_path):
    model = tiny_model.save(tmp_path / "chatty")
    (model / "chat_template.jinja").write_text(
        "{% for m in messages %}<|{{ m.role }}|>{{ m.content }}{% endfor %}"
        "{% if add_generation_prompt %}<|assistant|>{% endif %}"
    )
    file = rows({"text": "another"}, {"messages": [QUESTION], "n": 1})
    dense = ("--break-even", 100_000, "--no-answer-check")
    printed("analyze", file, "--number", 2, "--model", model, "--out", tmp_path, *dense)
    (bundle,) = tmp_path.glob("*/prompt.parquet")
    record = read_bundle(bundle.parent)
    assert record.prompt.text == f"<|user|>{QUESTION['content']}<|assistant|>"
    assert record.run.prompt_name == "rows.jsonl #2"


def test_a_model_without_a_template_is_refused_before_it_is_loaded(run, rows):
    code, out, err = run("analyze", rows({"messages": [QUESTION]}))
    assert (code, out) == (2, "") and "has no chat template; choose a model with" in err
    assert "loading model" not in err


def test_a_calibrations_file_is_a_document_a_line(rows):
    file = rows({"text": "one ledger"}, {"context": "two", "question": "what?"})
    texts = [document.name for document in read_documents(file, "d", load_tokenizer("demo").tokenizer)]
    assert texts == ["rows #1", "rows #2"]
