"""Questions with gold answers, read from JSON lines: what becomes of each field, and what is refused. No model."""

import json

import pytest

from routesparse.engine.calibrate.questions import are_questions, read_questions
from routesparse.engine.calibrate.tuning_windows import draw_questions
from routesparse.engine.errors import CalibrationError


class Bytes:
    """A token a byte, and 300 in front of a prompt."""

    bos_token_id = 300

    def __call__(self, text, **_):
        return {"input_ids": list(text.encode())}


def write(path, *lines):
    path.write_text("".join((one if isinstance(one, str) else json.dumps(one)) + "\n" for one in lines))
    return path


def test_the_prompt_begins_and_the_answer_stays_apart(tmp_path):
    file = write(
        tmp_path / "q.jsonl",
        {"prompt": "Who?", "answer": "Ada", "document": "d", "note": [1]},
        {"prompt": "Who?", "answer": "Bob"},
        {"prompt": "long\n" * 900, "answer": "a\nb"},
    )
    ada, bob, _ = read_questions(file, "mine", Bytes())
    assert ada.token_ids == (300, *b"Who?") and ada.answer_ids == tuple(b"Ada")
    assert (ada.domain, ada.document) == ("mine", "d")
    assert bob.document == bob.document_sha256[:16], "of its own where none is named"
    assert ada.sha256 != bob.sha256 and ada.document_sha256 == bob.document_sha256


def test_prepared_prompts_of_an_evaluation_are_questions(tmp_path):
    header = {"suite": "ruler", "task": "vt", "length": 600, "n": 1, "seed": 0, "tokenizer": "t"}
    row = {"task": "vt", "prompt": "Find.", "answer_prefix": " It is", "answer": " A", "cluster": "vt/0"}
    (found,) = read_questions(write(tmp_path / "vt.jsonl", header, row), "mine", Bytes())
    assert found.token_ids == (300, *b"Find. It is") and found.document == "vt/0"


@pytest.mark.parametrize(
    ("line", "told"),
    [
        ("{", "line 2 of"),
        ({"prompt": "a"}, "answer"),
        ({"prompt": "a", "answer": ""}, "answer"),
        ({"prompt": "a", "answer": 3}, "answer"),
        ('{"prompt": "a", "prompt": "b", "answer": "c"}', "prompt"),
        ({"suite": "ruler"}, "prompt"),
    ],
)
def test_a_line_that_is_no_question_is_named(tmp_path, line, told):
    file = write(tmp_path / "q.jsonl", {"prompt": "a", "answer": "b"}, line)
    with pytest.raises(CalibrationError, match=r"line 2 of .*q\.jsonl: .*write") as error:
        read_questions(file, "mine", Bytes())
    assert told in str(error.value)


def test_an_empty_file_and_a_missing_one_are_refused(tmp_path):
    with pytest.raises(CalibrationError, match="holds no question"):
        read_questions(write(tmp_path / "q.jsonl"), "mine", Bytes())
    with pytest.raises(CalibrationError, match="can't be read"):
        read_questions(tmp_path / "none.jsonl", "mine", Bytes())


def test_texts_and_questions_are_not_measured_together(tmp_path):
    text, file = tmp_path / "a.txt", tmp_path / "q.jsonl"
    assert are_questions([file]) and not are_questions([text, tmp_path])
    with pytest.raises(CalibrationError, match="can't be measured together"):
        are_questions([text, file])


def test_every_document_has_its_first_question_before_any_has_its_second(tmp_path):
    rows = [{"prompt": f"{doc} {i}", "answer": "x", "document": doc} for doc in "ab" for i in range(2)]
    windows = read_questions(write(tmp_path / "q.jsonl", *rows), "mine", Bytes())
    drawn = draw_questions(windows, 3)
    assert [(one.cluster, one.index) for one in drawn] == [("a", 0), ("b", 0), ("a", 1)]
    text = drawn[0].text("calibration", 7)
    assert text.answer == list(b"x") and not text.asked
    with pytest.raises(CalibrationError, match="comes twice"):
        draw_questions([*windows, windows[0]], 9)
