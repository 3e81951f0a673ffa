"""Our scorers print what the official scripts print. The real prediction files are at ../shared/data. No GPU."""

import json
from pathlib import Path

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites.registry import find
from routesparse.engine.lab.suites.suite import read_rows

FIXTURES = Path(__file__).resolve().parents[5] / "shared" / "data" / "benchmarks"
real = pytest.mark.skipif(not FIXTURES.exists(), reason="the published predictions are not at ../shared/data")


def expected(path):
    return json.loads((FIXTURES / path).read_text()) if FIXTURES.exists() else {}


def score(suite, task, rows):
    return find(suite).score(task, rows)


@pytest.fixture
def scored(printed):
    """scored(suite, task, file): what ``score`` says of it."""
    return lambda *arguments: json.loads(printed("score", *arguments, "--json"))


@real
@pytest.mark.parametrize(
    "row", expected("infinitebench/expected.json").get("rows", []), ids=lambda r: r["file"]
)
def test_infinitebench_prints_the_official_score(scored, row):
    found = scored("infinitebench", row["task"], FIXTURES / "infinitebench" / row["file"])
    wanted = {"suite": "infinitebench", "task": row["task"], "n": row["n"], "score": row["official_scorer"]}
    assert found == wanted


@real
@pytest.mark.parametrize("place", range(23))
def test_longbench_gives_the_golden_value(scored, tmp_path, place):
    case = expected("longbench/golden_metrics.json")[place]
    file = tmp_path / "predictions.jsonl"
    file.write_text(json.dumps(case))
    assert score("longbench", case["dataset"], [case]).values == (pytest.approx(case["score"], abs=1e-12),)
    assert scored("longbench", case["dataset"], file)["score"] == round(100 * case["score"], 2)


# What the published files do not reach, from the official scripts' rules.
INFINITEBENCH = [
    ("passkey", "It is 12 345.", "12", 1.0),
    ("passkey", "none", "12", 0.0),
    ("kv_retrieval", '"ab-1": "cd-2"', ["cd-2"], 1.0),
    ("longdialogue_qa_eng", "It is Ace.", ["ACE", "ACE ROTHSTEIN"], 1.0),
    ("longdialogue_qa_eng", "rothstein", ["ACE", "ROTHSTEIN"], 0.0),  # the first name alone counts
    ("longbook_choice_eng", "", ["text", "B"], 0.0),
    ("longbook_choice_eng", "text", ["text", "B"], 1.0),
    ("longbook_choice_eng", "I think the answer is B", ["text", "B"], 1.0),
    ("longbook_choice_eng", "perhaps C or B", ["text", "B"], 0.0),
    ("code_debug", "B", ["name", "B"], 0.0),  # a bare letter scores 0, officially too
    ("code_debug", "B. name", ["name", "B"], 1.0),
    ("code_debug", "The correct option is: name", ["name", "B"], 1.0),
    ("code_debug", "\n B: name", ["name", "B"], 1.0),
    ("code_debug", " C..correct option is: D ", ["B", "C"], 1.0),
    ("code_debug", "The answer is:", ["", "B"], 0.0),  # nothing stands behind it
    ("longbook_choice_eng", "option is", ["", "C"], 0.0),
    ("longbook_choice_eng", "none of them", "B", 0.0),
    ("math_calc", "option[[21, 29]]x = 1", [[21, 29]], 1.0),
    ("math_calc", "[1, 4, 9" + 5_000 * "9", [1, 4, 9], 2 / 3),  # more digits than Python's int reads
    ("math_find", 5_000 * "1", 1, 0.0),
    ("math_find", "12.5", ["12.5"], 1.0),
    ("longbook_qa_eng", "anything", [], 0.0),
    ("code_run", "so it is `-7`.", -7, 1.0),
    ("code_run", "seven", 7, 0.0),
    ("math_calc", "[1, 4, 9]", [1, 4, 8, 2], 0.5),
    ("math_find", "It is 12.5", 12.5, 1.0),
    ("math_find", "1.5", 1, 0.0),
    ("longbook_sum_eng", "the cat sat", "the cat sat", 1.0),
    ("longbook_qa_chn", "胡一刀。", ["胡一刀"], 1.0),
]


@pytest.mark.parametrize(("task", "prediction", "gold", "value"), INFINITEBENCH)
def test_infinitebench_by_hand(task, prediction, gold, value):
    row = {"id": 0, "pred": prediction, "label": gold}
    assert score("infinitebench", task, [row]).values == (pytest.approx(value),)


def test_longbench_reads_the_paragraph_in_the_task_s_own_words():
    row = {"pred": "Paragraph 3", "answers": ["段落4 Paragraph 3"]}
    assert [
        score("longbench", f"passage_retrieval_{language}", [row]).score for language in ("en", "zh")
    ] == [100.0, 0.0]


@pytest.mark.parametrize(
    ("task", "pred", "gold", "value"),
    [
        ("vt", "it is AB\x00cd", ["ab", "CD", "ef"], 200 / 3),
        ("qa_1", "in Paris", ["London", "paris"], 100.0),
        ("qa_1", "", ["x"], 0.0),
        ("vt", "\xa0 \x00 ", ["x"], 0.0),
    ],
)
def test_ruler_matches_all_or_any(task, pred, gold, value):
    found = score("ruler", task, [{"index": 0, "pred": pred, "outputs": gold}])
    assert found.score == round(value, 2)
    assert found.parts == {"nulls": int(len(pred) < 5)}


def test_pg19_divides_sums_over_books():
    """Two books: corpus perplexity, not the mean of the books' perplexities."""
    book = {"nll": 60.0, "tokens": 20, "words": 10, "bytes": 50, "last_nll": 8.0, "last_tokens": 4}
    other = {"nll": 30.0, "tokens": 20, "words": 10, "bytes": 50, "last_nll": 4.0, "last_tokens": 4}
    found = score("pg19", "test", [book, other])
    assert found.score == pytest.approx(2.718281828**4.5, rel=1e-4)
    assert found.parts["token_perplexity"] == pytest.approx(2.718281828**2.25, rel=1e-4)
    assert found.parts["bits_per_byte"] == pytest.approx(90 / 0.69314718 / 100, rel=1e-4)
    assert found.parts["last_1k"] == pytest.approx(2.718281828**1.5, rel=1e-4)


def test_the_score_is_printed_for_people_too(run, tmp_path):
    file = tmp_path / "p.jsonl"
    file.write_text('{"index": 0, "pred": "", "outputs": ["x"]}\n\n')
    code, out, _ = run("score", "ruler", "vt", file)
    assert (code, out) == (0, "ruler vt: 0.0 (n 1)\n  nulls: 1\n")


BOOK = '{"nll": 4, "tokens": 6, "words": 5, "bytes": 9, "last_nll": 1, "last_tokens": 2}'
# A row of each form, whose gold an empty prediction or the word None would match.
ROWS = {
    "ruler vt": {"pred": "", "outputs": ["no"]},
    "ruler qa_2": {"pred": "", "outputs": ["one", ""]},
    "stories story_retrieval": {"pred": "", "outputs": [""]},
    "infinitebench passkey": {"prediction": "", "ground_truth": ""},
    "longbench lcc": {"pred": "", "answers": [""]},
    "longbench trec": {"pred": "", "answers": [""], "all_classes": [""]},
}


@pytest.mark.parametrize("name", ROWS)
def test_a_null_prediction_scores_nothing_and_one_that_is_no_text_is_refused(scored, run, tmp_path, name):
    suite, task = name.split()
    file = tmp_path / "p.jsonl"
    asked = next(field for field in ROWS[name] if "pred" in field)
    file.write_text(json.dumps(ROWS[name] | {asked: None}))
    found = scored(suite, task, file)
    assert (found["n"], found["nulls"]) == (1, 1) and found["score"] == 0
    for wrong in (False, 5, ["no"], {"text": "no"}, float("nan")):
        file.write_text(json.dumps(ROWS[name]) + "\n" + json.dumps(ROWS[name] | {asked: wrong}))
        code, out, err = run("score", suite, task, file)
        assert (code, out) == (2, "") and f"row 2: {asked} is " in err


@pytest.mark.parametrize(
    ("suite", "task", "text", "said"),
    [
        ("rule", "vt", "{}", "unknown suite 'rule'; use one of ruler"),
        ("ruler", "vt2", "{}", "no task 'vt2'; use some of niah_single_1"),
        ("longbench", "ruler", "{}", "no task 'ruler'; use some of narrativeqa"),
        ("ruler", "vt", "", "no rows to score"),
        ("ruler", "vt", "{}\n{", "line 2 is no JSON"),
        ("ruler", "vt", "[]", "line 1 is no JSON object"),
        ("ruler", "vt", '{"pred": "x"}', "no field 'outputs'"),
        (
            "ruler",
            "vt",
            '{"pred": "x", "outputs": [""' + ", 5" * 9 + "]}",
            "row 1: outputs[1] is 5, it must be a text",
        ),
        ("ruler", "vt", '{"pred": ' + 100_000 * "[", "line 1 is no JSON"),
        (
            "ruler",
            "vt",
            2 * '{"index": 3, "pred": "x", "outputs": ["x"]}\r\n\n',
            "row 2: index is 3, as in row 1",
        ),
        ("infinitebench", "math_find", '{"pred": "1", "label": "1.5.0"}', 'row 1: label is "1.5.0"'),
        ("infinitebench", "longdialogue_qa_eng", '{"pred": "1", "label": "ACE"}', 'row 1: label is "ACE"'),
        ("longbench", "trec", '{"pred": "x", "answers": ["x"]}', "row 1: no field 'all_classes'"),
        ("longbench", "passage_retrieval_en", '{"pred": "x", "answers": ["3"]}', "row 1: answers holds '3'"),
        ("pg19", "test", BOOK.replace("4", '"4"', 1), 'row 1: nll is "4", it must be a finite number'),
        (
            "pg19",
            "test",
            f"{BOOK}\n{BOOK.replace('5', '0')}",
            "row 2: words is 0, it must be a finite number above 0",
        ),
        ("pg19", "test", BOOK.replace("4", "9e9", 1), "the nats a word are too many"),
    ],
)
def test_bad_predictions_end_in_one_line(run, tmp_path, suite, task, text, said):
    file = tmp_path / "p.jsonl"
    file.write_text(text)
    code, out, err = run("score", suite, task, file)
    assert (code, out) == (2, "") and said in err


def test_a_missing_file_is_named(tmp_path):
    with pytest.raises(InputError, match="cannot be read"):
        read_rows(tmp_path / "none.jsonl")
    (tmp_path / "long.jsonl").write_text('{"a": 1}\n' * 3)
    assert len(read_rows(tmp_path / "long.jsonl", 27)) == 3
    with pytest.raises(
        InputError, match=r"long.jsonl' cannot be read: it has more than 26 bytes; pass a JSON"
    ):
        read_rows(tmp_path / "long.jsonl", 26)
