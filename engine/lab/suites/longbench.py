"""LongBench, first version (Bai et al. 2024, arXiv:2308.14508): 21 tasks, read from files.

Files: ``<task>.jsonl`` in ``<data>/benchmarks/longbench/data/`` or beside it, with ``input, context, answers, length,
dataset, language, all_classes, _id``. A prompt that is too long loses its middle. Instructions are in longbench.toml.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from routesparse.engine.lab.suites.longbench_score import SCORERS, score
from routesparse.engine.lab.suites.source import Example, Request, Source
from routesparse.engine.lab.suites.suite import Golds, Row, Suite, field_of, read_examples, templates

TASKS = tuple(SCORERS)
TEMPLATES = templates(__file__)
_KEPT = ("all_classes", "length", "_id")


def _examples(request: Request, source: Source) -> Iterator[Example]:
    path = source.needed_file("longbench", f"data/{request.task}.jsonl", f"{request.task}.jsonl")
    return read_examples(path, request, partial(_example, request, source))


def _example(request: Request, source: Source, index: int, row: Row) -> Example:
    task, template = request.task, TEMPLATES[request.task]
    asked, new_tokens = field_of({"input": "", **row}, "input", kind=str), template["new_tokens"]
    texts = (template[name].replace("{input}", asked) for name in ("before", "behind", "prefix"))
    before, behind, prefix = texts
    room = source.room(request, new_tokens, prefix, spare=1)
    prompt, truncated = source.cut_middle(before + field_of(row, "context", kind=str) + behind, room)
    answers = field_of(row, "answers", kind=Golds)
    more = {name: row.get(name) for name in _KEPT} | {"truncated": truncated}
    spaced = "" if row.get("language") == "zh" or task in ("lcc", "repobench-p") or not prefix else " "
    cluster = str(row.get("_id", index))
    return Example(task, index, prompt, prefix, answers, spaced + answers[0], new_tokens, cluster, more)


def _row(example: Example, prediction: str) -> dict[str, Any]:
    """A prediction in LongBench's format; upstream rows have no id, which pairing needs."""
    kept = {name: example.more[name] for name in _KEPT}
    return {"index": example.index, "pred": prediction, "answers": example.gold, **kept}


SUITE = Suite("longbench", TASKS, score, _examples, _row)
