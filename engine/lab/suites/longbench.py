"""LongBench, first version (Bai et al. 2024, arXiv:2308.14508): 21 tasks, read from files.

Files: ``<task>.jsonl`` in ``<data>/benchmarks/longbench/data/`` or beside it, with ``input, context, answers, length,
dataset, language, all_classes, _id``. A prompt that is too long loses its middle. Instructions are worded anew in the
shape of the official ones: instruction, context, question, cue.
"""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from typing import Any

from routesparse.engine.lab.suites.longbench_score import SCORERS, score
from routesparse.engine.lab.suites.source import Example, Request, Source
from routesparse.engine.lab.suites.suite import Golds, Row, Suite, field_of, read_examples

TASKS = tuple(SCORERS)
NEW_TOKENS = {
    **dict.fromkeys(("narrativeqa", "qasper", "dureader", "samsum"), 128),
    **dict.fromkeys(("multifieldqa_en", "multifieldqa_zh", "trec", "lsht", "lcc", "repobench-p"), 64),
    **dict.fromkeys(("hotpotqa", "2wikimqa", "musique", "triviaqa"), 32),
    **dict.fromkeys(("passage_count", "passage_retrieval_en", "passage_retrieval_zh"), 32),
    **dict.fromkeys(("gov_report", "qmsum", "multi_news", "vcsum"), 512),
}
_KEPT = ("all_classes", "length", "_id")
_PASSAGES = (
    "Use the passages below to answer the question. Give the answer only.\n\n",
    "\n\nGive the answer to this question only.\n\nQuestion: {input}",
    "\nAnswer:",
)
# Introduction, what stands behind the context, and the unfinished answer.
_TEMPLATES: dict[str, tuple[str, str, str]] = {
    "narrativeqa": (
        "Below is a story, a novel or a script, and a question about it. Answer in a single phrase.\n\nStory: ",
        "\n\nAnswer the question about the story in a single phrase.\n\nQuestion: {input}",
        "\n\nAnswer:",
    ),
    "qasper": (
        'Below is a scientific article and a question about it. Answer in a phrase or sentence, with "yes" or "no" if '
        'that is asked, or with "unanswerable" where the article does not tell.\n\nArticle: ',
        '\n\nAnswer the question about the article in a phrase or sentence, with "yes", "no" or "unanswerable".\n\n'
        "Question: {input}",
        "\n\nAnswer:",
    ),
    "multifieldqa_en": (
        "Read the text below, then answer briefly.\n\n",
        "\n\nGive the answer to this question only.\n\nQuestion: {input}",
        "\nAnswer:",
    ),
    "multifieldqa_zh": (
        "请阅读下面的文字，然后用中文简短回答。\n\n",
        "\n\n请只给出下面问题的答案。\n\n问题：{input}",
        "\n回答：",
    ),
    **dict.fromkeys(("hotpotqa", "2wikimqa", "musique"), _PASSAGES),
    "dureader": (
        "请根据下面的文章回答问题。\n\n文章：",
        "\n\n请根据上面的文章回答问题。\n\n问题：{input}",
        "\n回答：",
    ),
    "gov_report": (
        "Summarize the government report below on one page.\n\nReport:\n",
        "\n\nSummarize it on one page.\n\n",
        "Summary:",
    ),
    "qmsum": (
        "Below is the transcript of a meeting, and a query. Answer it in one or more sentences.\n\nTranscript:\n",
        "\n\nAnswer the query in one or more sentences.\n\nQuery: {input}",
        "\nAnswer:",
    ),
    "multi_news": (
        "Summarize the news below on one page.\n\nNews:\n",
        "\n\nSummarize all of it on one page.\n\n",
        "Summary:",
    ),
    "vcsum": ("请总结下面的会议记录。\n会议记录：\n", "\n\n", "会议总结："),
    "trec": ("Name the type of the last question. Examples come first.\n\n", "\n{input}", ""),
    "triviaqa": (
        "Use the passage to answer the question. Give the answer only. Examples come first.\n\n",
        "\n\n{input}",
        "",
    ),
    "samsum": (
        "Summarize the last dialogue in a few short sentences. Examples come first.\n\n",
        "\n\n{input}",
        "",
    ),
    "lsht": ("请判断最后一条新闻的类别。下面先是一些例子。\n\n", "\n{input}", ""),
    "passage_count": (
        "Some of the paragraphs below occur more than once. Count how many different ones there are.\n\n",
        "\n\nHow many different paragraphs are there? Give the number only.\n\n",
        "The final answer is: ",
    ),
    "passage_retrieval_en": (
        "Below are 30 paragraphs and an abstract. Find the paragraph that the abstract belongs to.\n\n",
        "\n\nThe abstract:\n\n{input}\n\nGive the number of its paragraph, in the form 'Paragraph 1'.\n\n",
        "The answer is: ",
    ),
    "passage_retrieval_zh": (
        "下面是一些段落和其中一段的摘要，请找出摘要对应的段落。\n\n",
        "\n\n摘要：\n\n{input}\n\n请给出段落编号，格式为“段落1”。\n\n",
        "答案是：",
    ),
    "lcc": ("Complete the code below.\n", "", "Next line of code:\n"),
    "repobench-p": ("Complete the code below.\n", "{input}", "Next line of code:\n"),
}


def _examples(request: Request, source: Source) -> Iterator[Example]:
    path = source.needed_file("longbench", f"data/{request.task}.jsonl", f"{request.task}.jsonl")
    return read_examples(path, request, partial(_example, request, source))


def _example(request: Request, source: Source, index: int, row: Row) -> Example:
    task, new_tokens = request.task, NEW_TOKENS[request.task]
    asked = field_of({"input": "", **row}, "input", kind=str)
    before, behind, prefix = (text.replace("{input}", asked) for text in _TEMPLATES[task])
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
