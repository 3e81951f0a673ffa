"""InfiniteBench (Zhang et al. 2024, arXiv:2402.13718), 12 tasks.

Files: ``<data>/benchmarks/infinitebench/<task>.jsonl`` with ``id, context, input, answer, options``. Where a file is
missing, the six generated tasks are made anew, sized to the length; the other six need their file, whose texts may not
be shipped. A prompt that is too long loses its middle, and says so (``more["truncated"]``). Templates are ours, for
models that continue a text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites import infinitebench_make
from routesparse.engine.lab.suites.generated import filled, indices
from routesparse.engine.lab.suites.infinitebench_score import SCORERS, TEXT, flat, score
from routesparse.engine.lab.suites.source import SEED_OFFSET, Source
from routesparse.engine.lab.suites.suite import Example, Request, Suite, field_of, named_row, read_rows
from routesparse.engine.lab.training.samples import Sample, Turn, sample_rng

TASKS = tuple(SCORERS)
NEW_TOKENS = {
    "passkey": 6,
    "number_string": 12,
    "kv_retrieval": 50,
    "longbook_sum_eng": 1_200,
    "longbook_choice_eng": 40,
    "longbook_qa_eng": 40,
    "longbook_qa_chn": 40,
    "longdialogue_qa_eng": 40,
    "math_find": 3,
    "math_calc": 30_000,
    "code_run": 5,
    "code_debug": 5,
}
_CALC_TOKENS = 128  # of a generated sum, which is as long as the prompt lets it be
# Introduction, what stands behind the context, and the unfinished answer.
_LETTERS = "\nA. {A}\nB. {B}\nC. {C}\nD. {D}"
_TEMPLATES: dict[str, tuple[str, str, str]] = {
    "passkey": (
        "A piece of important information is hidden in a lot of irrelevant text. Find and memorize it.\n\n",
        "\n\n{input}",
        " The pass key is",
    ),
    "number_string": (
        "A piece of important information is hidden in a lot of irrelevant text. Find and memorize it.\n\n",
        "\n\n{input}",
        " The sequence of digits is",
    ),
    "kv_retrieval": ("Find the value of the given key in the JSON object below.\n\n", "\n\n{input}", ""),
    "longbook_sum_eng": ("Read the book below and summarize it.\n\n", "\n\n", "Summary:"),
    "longbook_choice_eng": (
        "Read the book and choose the right answer.\n\n",
        "\n\nQuestion: {input}" + _LETTERS,
        "\n\nThe letter of the correct answer is",
    ),
    "longbook_qa_eng": (
        "Read the book and answer the question in a few words.\n\n",
        "\n\nQuestion: {input}",
        "\nAnswer:",
    ),
    "longbook_qa_chn": ("阅读下面的书籍，然后简短地回答问题。\n\n", "\n\n问题：{input}", "\n答案："),
    "longdialogue_qa_eng": (
        "In the dialogue below one occurrence of a character's name is replaced by $$MASK$$.\n\n",
        "\n\nWho is it?",
        "\nThe name that was replaced by $$MASK$$ is",
    ),
    "math_find": ("{input}\n\n", "\n\n{input}", " The number is"),
    "math_calc": (
        "Write down the intermediate values of the expression.\n\nExpression: 1 + 3 + 4\nValues: [1, 4, 8]\n\n"
        "Expression: ",
        "\n",
        "Values: [",
    ),
    "code_run": (
        "There is a function {function} in the Python code below.\n\n",
        "\n\n{input}",
        " The value of {call} is",
    ),
    "code_debug": (
        "Exactly one of the functions in the code below has a deliberate error.\n\n",
        "\n\nWhich one is it?" + _LETTERS,
        "\n\nThe correct option is:",
    ),
}
_CALL = re.compile(r"(func_[0-9]+)\(-?[0-9]+\)")


def examples(request: Request, source: Source) -> Iterator[Example]:
    """Errors: InputError for an unknown task, a task without its file, or a length that is too short."""
    SUITE.check(request.task)
    task = request.task
    if task in infinitebench_make.MAKERS and source.file("infinitebench", f"{task}.jsonl") is None:
        for index in indices(request):
            yield _generated(request, source, index)
        return
    path: Path = source.needed_file("infinitebench", f"{task}.jsonl")
    for number, row in enumerate(read_rows(path)[request.first : request.n], request.first + 1):
        with named_row(number):
            example = _read(request, source, row)
        yield example


def _texts(task: str, row: Mapping[str, Any]) -> tuple[str, str, str]:
    """What stands before and behind the context, and the unfinished answer."""
    options = field_of({"options": None, **row}, "options", kind=list[str] | None) or []
    asked = {
        "input": field_of({"input": "", **row}, "input", kind=str),
        **dict(zip("ABCD", options, strict=False)),
    }
    if task == "code_run":
        found = _CALL.search(asked["input"])
        if found is None:
            raise InputError(f"code_run's input {asked['input'][:80]!r} calls no function func_1(2)")
        asked |= {"call": found.group(), "function": found.group(1)}
    try:
        before, behind, prefix = (text.format(**asked) for text in _TEMPLATES[task])
    except KeyError as error:
        raise InputError(f"a row of {task} has no option {error}; it needs four options") from error
    return before, behind, prefix


def _gold(task: str, row: Mapping[str, Any]) -> Any:
    """As the published predictions have it: of the choice tasks the answer's text and its letter."""
    if task not in ("longbook_choice_eng", "code_debug"):
        return field_of(row, "answer", kind=SCORERS[task][1])
    answer = field_of(row, "answer", kind=TEXT)
    texts = [answer] if isinstance(answer, str) else answer
    if len(texts) == 2 and texts[1] in tuple("ABCD"):
        return texts
    options = field_of(row, "options", kind=list[str])[:4]
    if len(texts) != 1 or texts[0] not in options:
        raise InputError(f"answer is {answer!r}, which is none of its first four options")
    return [texts[0], "ABCD"[options.index(texts[0])]]


def _answer(task: str, gold: Any) -> str:
    """A reference completion."""
    if task == "math_calc":
        return ", ".join(map(str, flat(gold))) + "]"
    if task in ("longbook_choice_eng", "code_debug"):
        return f" {gold[1]}."
    text = str((gold or [""])[0] if isinstance(gold, list) else gold)
    return text if task in ("kv_retrieval", "longbook_qa_chn") else f" {text}"


def _read(request: Request, source: Source, row: Mapping[str, Any]) -> Example:
    task = request.task
    before, behind, prefix = _texts(task, row)
    context = field_of(row, "context", kind=str)
    room = request.length - NEW_TOKENS[task] - source.special_tokens - source.count(prefix) - 1
    if room < 64:
        raise InputError(
            f"{task} writes {NEW_TOKENS[task]:,} tokens, which leaves none of {request.length:,} to the prompt; raise "
            "--lengths"
        )
    prompt, truncated = source.cut_middle(before + context + behind, room)
    gold = _gold(task, row)
    book = hashlib.sha256(context.encode()).hexdigest()[:12]
    return Example(
        task,
        field_of(row, "id", kind=int),
        prompt,
        prefix,
        gold,
        _answer(task, gold),
        NEW_TOKENS[task],
        book,
        {"truncated": truncated},
    )


def _generated(request: Request, source: Source, index: int) -> Example:
    task, seed = request.task, request.seed + SEED_OFFSET
    new_tokens = min(NEW_TOKENS[task], _CALC_TOKENS)

    def row(units: int) -> dict[str, Any]:
        return infinitebench_make.make_row(task, sample_rng(seed, task, request.length, index), units, index)

    def make(units: int) -> Sample:
        made = row(units)
        before, behind, prefix = _texts(task, made)
        turn = Turn(behind, prefix, (str(made["answer"]),), "")
        return Sample(task, before + made["context"], turn, (), (), {"units": units})

    guess, least = infinitebench_make.SIZES[task]
    sample = filled(source, request, new_tokens, make, guess=guess, least=least)
    gold = _gold(task, row(int(sample.metadata["units"])))
    about = {"truncated": False, "source": "generated"}
    return Example(
        task,
        index,
        sample.prompt,
        sample.answer_prefix,
        gold,
        _answer(task, gold),
        new_tokens,
        f"{task}/{index}",
        about,
    )


def prediction_row(example: Example, prediction: str) -> dict[str, Any]:
    """A prediction in InfiniteBench's format."""
    return {"id": example.index, "prediction": prediction, "ground_truth": example.gold}


SUITE = Suite("infinitebench", TASKS, score, examples, prediction_row)
