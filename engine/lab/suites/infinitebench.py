"""InfiniteBench (Zhang et al. 2024, arXiv:2402.13718), 12 tasks.

Files: ``<data>/benchmarks/infinitebench/<task>.jsonl`` with ``id, context, input, answer, options``. Where a file is
missing, the six generated tasks are made anew, sized to the length; the other six need their file, whose texts may not
be shipped. A prompt that is too long loses its middle, and says so (``more["truncated"]``). Templates are ours, for
models that continue a text.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterator
from functools import partial
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.generators.infinitebench import MAKERS, SIZES
from routesparse.engine.lab.generators.samples import Sample, sample_rng
from routesparse.engine.lab.suites.infinitebench_score import SCORERS, TEXT, flat, score
from routesparse.engine.lab.suites.source import SEED_OFFSET, Example, Request, Source, filled
from routesparse.engine.lab.suites.suite import Row, Suite, field_of, generated, read_examples

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


def _examples(request: Request, source: Source) -> Iterator[Example]:
    task = request.task
    if task in MAKERS and source.file("infinitebench", f"{task}.jsonl") is None:
        return generated(_generated)(request, source)
    path = source.needed_file("infinitebench", f"{task}.jsonl")
    return read_examples(path, request, partial(_read, request, source))


def _texts(task: str, row: Row) -> tuple[str, str, str]:
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


def _gold(task: str, row: Row) -> Any:
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


def _read(request: Request, source: Source, place: int, row: Row) -> Example:
    task, new_tokens = request.task, NEW_TOKENS[request.task]
    before, behind, prefix = _texts(task, row)
    context = field_of(row, "context", kind=str)
    room = source.room(request, new_tokens, prefix, spare=1)
    prompt, truncated = source.cut_middle(before + context + behind, room)
    gold = _gold(task, row)
    return Example(
        task=task,
        index=field_of(row, "id", kind=int),
        prompt=prompt,
        answer_prefix=prefix,
        gold=gold,
        answer=_answer(task, gold),
        new_tokens=new_tokens,
        cluster=hashlib.sha256(context.encode()).hexdigest()[:12],
        more={"truncated": truncated},
    )


def _generated(request: Request, source: Source, index: int) -> Example:
    task, new_tokens = request.task, min(NEW_TOKENS[request.task], _CALC_TOKENS)

    def make(units: int) -> Sample:
        rng = sample_rng(request.seed + SEED_OFFSET, task, request.length, index)
        context, question, gold = MAKERS[task](rng, units, index)
        before, behind, prefix = _texts(task, {"input": question})
        return Sample(before + context, behind, prefix, (gold,), _answer(task, gold))

    sample = filled(source, request, new_tokens, make, *SIZES[task])
    return Example(
        task=task,
        index=index,
        prompt=sample.prompt,
        answer_prefix=sample.answer_prefix,
        gold=sample.gold[0],
        answer=sample.answer,
        new_tokens=new_tokens,
        cluster=f"{task}/{index}",
        more={"truncated": False, "source": "generated"},
    )


def _row(example: Example, prediction: str) -> dict[str, Any]:
    """A prediction in InfiniteBench's format."""
    return {"id": example.index, "prediction": prediction, "ground_truth": example.gold}


SUITE = Suite("infinitebench", TASKS, score, _examples, _row)
