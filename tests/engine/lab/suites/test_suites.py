"""Prompts of every suite: the same for ever, sized, answerable, no evidence in the question."""

import hashlib
import json
from pathlib import Path

import pytest

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators import infinitebench
from routesparse.engine.lab.suites import ruler
from routesparse.engine.lab.suites.registry import SUITES, find
from routesparse.engine.lab.suites.source import Request, Source

LENGTH = 12_000  # bytes: the tokenizer of these tests has one token a byte
SHARED = Path(__file__).resolve().parents[5] / "shared" / "data"
# Of the first two prompts of seed 3: what was evaluated stays comparable.
HASHES = {
    "ruler/niah_single_1": "175a5f0989a92f88",
    "ruler/niah_single_2": "719bb1c2f4894b2d",
    "ruler/niah_single_3": "9e6606b3e9f73caa",
    "ruler/niah_multikey_1": "2b90515b54449996",
    "ruler/niah_multikey_2": "d3fbe56d80466738",
    "ruler/niah_multikey_3": "6c70273b1a51a4ca",
    "ruler/niah_multivalue": "196d1ce11d00854c",
    "ruler/niah_multiquery": "418b01a46585b627",
    "ruler/vt": "25eec324c55ebc6b",
    "ruler/cwe": "ce18d4d3bfce6c3b",
    "ruler/fwe": "eaa4746e8cdb6cc0",
    "ruler/qa_1": "2bb50e5308abb1b0",
    "ruler/qa_2": "ebf730f33fc131b6",
    "infinitebench/passkey": "822056ada822dae5",
    "infinitebench/number_string": "2d98f5cc2daa7835",
    "infinitebench/kv_retrieval": "08162d1d73bb8766",
    "infinitebench/code_run": "17092829d7cda0c8",
    "infinitebench/math_calc": "ac94e746c885dc70",
    "infinitebench/math_find": "c001e946f4e8dab9",
    "stories/story_retrieval": "b0947d8c13d7351d",
    "stories/story_before": "32f988cc70f3bfd5",
    "stories/story_chain": "780c2b62d605ffae",
    "stories/story_filtering": "87b5f6dd5e411a21",
}
GENERATED = [tuple(name.split("/")) for name in HASHES]
PROSE = " ".join(f"Sentence number {i} tells of a quiet walk by the river, long ago." for i in range(900))
UNANSWERABLE = {"id": "no", "question": "Unanswerable?", "is_impossible": True, "answers": []}
SQUAD = {
    "data": [
        {
            "title": "t",
            "paragraphs": [
                {
                    "context": f"Paragraph {i} says that the ship {i} sailed in the year {1700 + i}.",
                    "qas": [
                        UNANSWERABLE,
                        {
                            "id": str(i),
                            "question": f"When did ship {i} sail?",
                            "answers": [{"text": str(1700 + i), "answer_start": 0}] * 2,
                        },
                    ],
                }
                for i in range(250)
            ],
        }
    ]
}


@pytest.fixture(scope="module")
def data(tmp_path_factory):
    made = tmp_path_factory.mktemp("data")
    (made / "prose" / "test").mkdir(parents=True)
    (made / "prose" / "test" / "one.txt").write_text(PROSE.replace("river", "prose"))
    (made / "benchmarks" / "ruler").mkdir(parents=True)
    (made / "benchmarks" / "ruler" / "squad.json").write_text(json.dumps(SQUAD))
    return made


@pytest.fixture(scope="module")
def source(data, tiny_model):
    return Source(data, tiny_model.tokenizer())


def examples(source, suite, task, n=2, seed=3, length=LENGTH):
    return list(find(suite).examples(Request(task, length, n, seed), source))


def tokens(source, example):
    return source.count(example.prompt + example.answer_prefix) + source.special_tokens + example.new_tokens


def test_every_generated_task_is_held_to_its_prompts():
    tasks = {(name, task) for name in ("ruler", "stories") for task in find(name).tasks}
    assert set(GENERATED) == tasks | {("infinitebench", task) for task in infinitebench.MAKERS}


@pytest.mark.parametrize(("suite", "task"), GENERATED)
def test_generated_prompts_stay_fill_their_length_and_can_be_answered(source, suite, task):
    chosen, both = find(suite), examples(source, suite, task)
    made = repr([(e.prompt, e.answer_prefix, e.gold, e.answer) for e in both])
    assert hashlib.sha256(made.encode()).hexdigest()[:16] == HASHES[f"{suite}/{task}"]
    assert list(chosen.examples(Request(task, LENGTH, 2, 3, first=1), source)) == both[1:]
    for example in both:
        assert 0.85 * LENGTH <= tokens(source, example) <= LENGTH
    example = both[0]
    assert chosen.score(task, [chosen.row(example, example.answer)]).score == 100
    assert chosen.score(task, [chosen.row(example, "")]).score == 0
    # A window of the prompt's end holds no evidence of the tasks that have a place for it; others ask anywhere.
    if example.more.get("evidence") and task not in ("story_filtering", "vt"):
        for one in () if task.startswith("niah") else both:
            assert not any(str(gold) in one.prompt[-200:] + one.answer_prefix for gold in one.gold)


@pytest.mark.parametrize("task", ["niah_single_1", "niah_multikey_2", "vt", "fwe"])
def test_a_haystack_that_is_no_essay_needs_no_prose(source, tmp_path, task):
    request = Request(task, 4_000, 1, 3)
    bare = Source(tmp_path, source.tokenizer)
    assert list(ruler.SUITE.examples(request, bare)) == list(ruler.SUITE.examples(request, source))
    with pytest.raises(InputError, match="holds no"):
        list(ruler.SUITE.examples(Request("niah_multivalue", 4_000, 1, 3), bare))


def test_prompts_in_one_essay_are_one_cluster_and_others_one_each(source, tmp_path):
    folder = tmp_path / "prose" / "test"
    folder.mkdir(parents=True)
    for name in ("one", "two"):
        (folder / f"{name}.txt").write_text(PROSE)
    two = Source(tmp_path, source.tokenizer)

    def clusters(task):
        return [one.cluster for one in examples(two, "ruler", task, n=4, length=4_000)]

    assert clusters("niah_single_2") == clusters("niah_multiquery") == ["one", "two"] * 2
    assert clusters("niah_single_1") == [f"niah_single_1/{i}" for i in range(4)]
    (tmp_path / "benchmarks" / "ruler").mkdir(parents=True)
    (tmp_path / "benchmarks" / "ruler" / "PaulGrahamEssays.json").write_text(json.dumps({"text": PROSE}))
    assert clusters("niah_multivalue") == ["PaulGrahamEssays"] * 4


def test_ruler_reads_its_own_files_where_they_lie(source, data, tmp_path):
    root = tmp_path / "benchmarks" / "ruler" / "4096" / "data" / "qa_2"
    root.mkdir(parents=True)
    row = {"index": 7, "input": "in", "outputs": ["a", "b"], "length": 9, "answer_prefix": " Answer:"}
    (root / "validation.jsonl").write_text(json.dumps(row) + "\n")
    (found,) = examples(Source(tmp_path, source.tokenizer), "ruler", "qa_2", length=4096)
    assert (found.index, found.prompt, found.answer_prefix, found.gold) == (7, "in", " Answer:", ["a", "b"])


def rows(path, *made):
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("\n".join(map(json.dumps, made)))


def test_infinitebench_s_own_file_wins_and_long_prompts_lose_their_middle(source, tmp_path):
    context = "START " + "x" * 9_000 + " END"
    row = {
        "id": 4,
        "context": context,
        "input": "Which?",
        "answer": ["two"],
        "options": ["one", "two", "three", "four"],
    }
    rows(tmp_path / "benchmarks" / "infinitebench" / "longbook_choice_eng.jsonl", row)
    (found,) = examples(
        Source(tmp_path, source.tokenizer), "infinitebench", "longbook_choice_eng", length=1_000
    )
    assert found.gold == ["two", "B"] and found.index == 4 and found.more["truncated"]
    assert "START" in found.prompt and found.prompt.endswith("D. four")
    assert tokens(source, found) <= 1_000
    assert SUITES["infinitebench"].score(found.task, [SUITES["infinitebench"].row(found, "B")]).score == 100


FILE_ROW = {"id": 4, "context": "c", "input": "func_1(2)", "options": ["one", "two", "three", "four"]}


@pytest.mark.parametrize(
    ("task", "answer"),
    [
        *((task, ["two"]) for task in ("code_debug", "longbook_choice_eng")),
        ("code_debug", ["two", "B"]),
        ("math_calc", [[1, 4, 8]]),
        ("kv_retrieval", ["u-1"]),
        *((task, [7]) for task in ("code_run", "math_find")),
        ("longbook_qa_chn", ["胡一刀"]),
        ("longdialogue_qa_eng", ["ACE"]),
    ],
)
def test_the_reference_answer_of_infinitebench_s_files_scores_full_marks(source, tmp_path, task, answer):
    rows(tmp_path / "benchmarks" / "infinitebench" / f"{task}.jsonl", FILE_ROW | {"answer": answer})
    (found,) = examples(Source(tmp_path, source.tokenizer), "infinitebench", task, length=40_000)
    made = SUITES["infinitebench"].row(found, found.answer)
    assert SUITES["infinitebench"].score(task, [made]).score == 100


@pytest.mark.parametrize(
    ("suite", "task", "row", "said"),
    [
        ("infinitebench", "passkey", FILE_ROW | {"answer": 5}, "row 2: answer is 5, it must be a text"),
        ("infinitebench", "passkey", FILE_ROW | {"answer": "5", "id": "x"}, 'row 2: id is "x"'),
        ("infinitebench", "passkey", FILE_ROW | {"answer": "5", "context": None}, "row 2: context is null"),
        ("infinitebench", "passkey", FILE_ROW | {"answer": "5", "input": ["?"]}, "row 2: input is"),
        ("infinitebench", "code_debug", FILE_ROW | {"answer": ["five"]}, "row 2: answer is"),
        ("infinitebench", "code_debug", {"id": 1, "input": "", "context": "", "answer": ["five"]}, "row 2: "),
        ("longbench", "qasper", {"context": "c", "answers": []}, r"row 2: answers is \[\]"),
        ("longbench", "qasper", {"context": 5, "answers": ["x"]}, "row 2: context is 5"),
    ],
)
def test_a_row_of_a_benchmark_s_file_is_refused_by_its_field(source, tmp_path, suite, task, row, said):
    good = FILE_ROW | {"answer": ["two"], "answers": ["x"]}
    rows(tmp_path / "benchmarks" / suite / f"{task}.jsonl", good, row)
    with pytest.raises(InputError, match=said):
        examples(Source(tmp_path, source.tokenizer), suite, task, length=40_000)


def test_longbench_reads_its_format(source, tmp_path):
    row = {
        "input": "Who?",
        "context": "c" * 3_000,
        "answers": ["Ada", "Bob"],
        "length": 9,
        "dataset": "hotpotqa",
        "language": "en",
        "all_classes": None,
        "_id": "abc",
    }
    rows(tmp_path / "benchmarks" / "longbench" / "data" / "hotpotqa.jsonl", row)
    (found,) = examples(Source(tmp_path, source.tokenizer), "longbench", "hotpotqa", length=800)
    assert found.cluster == "abc" and found.answer == " Ada" and found.more["truncated"]
    assert tokens(source, found) <= 800 and found.prompt.endswith("Question: Who?")
    made = SUITES["longbench"].row(found, "Ada")
    assert SUITES["longbench"].score("hotpotqa", [made]).score == 100


def test_pg19_reads_books_with_their_titles(source, tmp_path):
    root = tmp_path / "benchmarks" / "pg19"
    (root / "test").mkdir(parents=True)
    (root / "test" / "145.txt").write_text("Miss Brooke had that kind of beauty " * 90)
    (root / "metadata.csv").write_text('145,"Middlemarch, by George Eliot",1871,http://x\n')
    (found,) = examples(Source(tmp_path, source.tokenizer), "pg19", "test", length=500)
    assert found.more["title"] == "Middlemarch, by George Eliot" and found.cluster == "145"
    assert source.count(found.prompt) + source.special_tokens <= 500


@pytest.mark.parametrize(
    ("suite", "task", "length", "said"),
    [
        ("longbench", "qmsum", 4_096, r"qmsum\.jsonl"),
        ("infinitebench", "code_debug", 4_096, r"code_debug\.jsonl"),
        ("pg19", "validation", 4_096, "holds no books"),
        ("ruler", "vt", 300, "raise length"),
        ("stories", "story_chain", 900, "raise length"),
        ("ruler", "vt3", 4_096, "no task 'vt3'"),
    ],
)
def test_what_is_missing_or_too_short_is_named(source, suite, task, length, said):
    with pytest.raises(InputError, match=said):
        examples(source, suite, task, length=length)


@pytest.mark.skipif(not SHARED.exists(), reason="the benchmark files are not at ../shared/data")
def test_the_real_files_make_prompts(source):
    """LongBench's, SQuAD's and PG-19's formats as they are published."""
    real = Source(SHARED, source.tokenizer)
    for suite, task in (
        ("longbench", "qmsum"),
        ("ruler", "qa_1"),
        ("pg19", "validation"),
    ):
        found = examples(real, suite, task, length=9_000)
        assert len(found) == 2 and all(tokens(real, example) <= 9_000 for example in found)
