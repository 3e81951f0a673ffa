"""L-Eval (An et al. 2023, arXiv:2307.11088): 20 tasks, read from files, scored by its automatic metrics.

Files: ``<task>.jsonl`` in ``<data>/benchmarks/leval/LEval-data/*/`` or ``.../leval/data/``; a row is a document with
its ``instructions`` and ``outputs``. A document that is too long loses its end (codeU: its beginning). Open questions
state the number of words of the reference, as L-Eval does. Instructions are worded anew; questions on one document are
one cluster.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from routesparse.engine.errors import InputError
from routesparse.engine.lab.suites.leval_score import AUTOMATIC, EXAMS, F1_TASKS, TASKS, score
from routesparse.engine.lab.suites.source import Example, Request, Source
from routesparse.engine.lab.suites.suite import Row, Suite, field_of, named_row, read_rows

NEW_TOKENS = 512
_LETTERED = ("tpo", "quality", "coursera")
MODEL = "routesparse_pred"


def _examples(request: Request, source: Source) -> Iterator[Example]:
    """Questions in file order, those for a judge or for people left out."""
    task = request.task
    path = source.needed_file("leval", f"LEval-data/*/{task}.jsonl", f"data/{task}.jsonl", f"{task}.jsonl")
    asked = itertools.islice(_questions(path), request.first, request.n)
    for index, (place, row, question, gold) in enumerate(asked, request.first):
        yield _example(request, source, index, place, row, question, gold)


def _questions(path: Path) -> Iterator[tuple[int, Row, str, str]]:
    """Every automatic question: its document's place and row, and its gold answer."""
    for place, row in enumerate(read_rows(path)):
        if row.get("evaluation", "exam") not in AUTOMATIC:
            continue
        with named_row(place + 1):
            questions, golds = (field_of(row, name, kind=list[str]) for name in ("instructions", "outputs"))
            if len(questions) != len(golds):
                raise InputError(f"instructions has {len(questions)} entries, outputs {len(golds)}")
            field_of(row, "input", kind=str)
        yield from ((place, row, *pair) for pair in zip(questions, golds, strict=True))


def _example(
    request: Request, source: Source, index: int, place: int, row: Row, question: str, gold: str
) -> Example:
    task, document = request.task, row["input"]
    before, behind, prefix = _texts(task, question, gold)
    room = source.room(request, NEW_TOKENS, before, behind, prefix, spare=4)
    if task == "codeU":
        ids = source.encode(document)
        text, truncated = (source.decode(ids[-room:]), True) if len(ids) > room else (document, False)
    else:
        text, truncated = source.cut_end(document, room)
    return Example(
        task=task,
        index=index,
        prompt=before + text + behind,
        answer_prefix=prefix,
        gold=gold,
        answer=f" {gold}",
        new_tokens=NEW_TOKENS,
        cluster=f"{task}/document {place}",
        more={"evaluation": row.get("evaluation", "exam"), "truncated": truncated},
    )


def _texts(task: str, question: str, gold: str) -> tuple[str, str, str]:
    """What stands before and behind the document, and the unfinished answer."""
    if task in _LETTERED:
        letters = "all correct letters" if task == "coursera" else "the letter of the correct option"
        return (
            f"Read the document and answer the question with {letters} only.\n\nDocument:\n",
            f"\n\nQuestion: {question}",
            "\nAnswer:",
        )
    if task in ("gsm100", "codeU", "topic_retrieval_longchat"):
        return "", f"\n\n{question}", "\n"
    if task in EXAMS:
        return (
            "Read the document and answer the question.\n\nDocument:\n",
            f"\n\nQuestion: {question}",
            "\nAnswer:",
        )
    kind = "Answer the question about" if task in F1_TASKS else "Follow the instruction about"
    return (
        f"{kind} the document below in about {len(gold.split())} words.\n\nDocument:\n",
        f"\n\n{question}\nWrite about {len(gold.split())} words.",
        "\nAnswer:",
    )


def _row(example: Example, prediction: str) -> dict[str, Any]:
    """A prediction in L-Eval's format; the prompt is left out."""
    return {
        "index": example.index,
        "query": "",
        "gt": example.gold,
        "prompt": "",
        MODEL: prediction,
        "evaluation": example.more["evaluation"],
    }


SUITE = Suite("leval", TASKS, score, _examples, _row)
