"""InfiniteBench (Zhang et al. 2024, arXiv:2402.13718), 12 tasks.

Files: ``<data>/benchmarks/infinitebench/<task>.jsonl`` with ``id, context, input, answer, options``. Where a file is
missing, the six generated tasks are made anew, sized to the length; the other six need their file, whose texts may not
be shipped. A prompt that is too long loses its middle, and says so (``more["truncated"]``). Templates are in
infinitebench.toml.
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
from routesparse.engine.lab.suites.suite import Row, Suite, field_of, generated, read_examples, templates

TASKS = tuple(SCORERS)
TEMPLATES = templates(__file__)
_CALC_TOKENS = 128  # of a generated sum, which is as long as the prompt lets it be
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
        before, behind, prefix = (
            TEMPLATES[task][name].format(**asked) for name in ("before", "behind", "prefix")
        )
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
    task, new_tokens = request.task, TEMPLATES[request.task]["new_tokens"]
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
    task, new_tokens = request.task, min(TEMPLATES[request.task]["new_tokens"], _CALC_TOKENS)

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
